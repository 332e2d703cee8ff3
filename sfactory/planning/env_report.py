"""Says what was found about an env, as text and as JSON, and which settings of sfactory fit it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sfactory.action_heads import ActionHead, DiscreteHead
from sfactory.config.argv import words_of
from sfactory.config.env_families import find_family
from sfactory.config.resolve import Resolved
from sfactory.config.schema import Config
from sfactory.env.factory import find_maker, takes_frameskip
from sfactory.errors import Refused
from sfactory.planning.env_findings import Finding
from sfactory.planning.env_inspection import Report, Times
from sfactory.planning.env_probe import Probed
from sfactory.planning.plan import choose_device, fitted_to_env, plan_sizes, steps_are_timed
from sfactory.planning.random_play import SOLE_KIND, VECTOR_KIND

_ENDLESS = 500  # steps without the end of an episode, after which a limit of time is advised
_LARGE_REWARD = 100.0
_LARGE_VALUE = 10.0
_PART_OF_LIMIT = 0.25  # of a timeout that a call may take without advice
_SETTINGS = ("num_workers", "num_envs_per_worker", "worker_num_splits", "rollout", "batch_size")


@dataclass
class Fit:
    """How training would begin.

    reading: sentences on each observation, action and network. settings: sizes by flag. command: what to type.
    """

    reading: tuple[str, ...] = ()
    settings: Mapping[str, object] | None = None
    command: str = ""


def fit(report: Report, resolved: Resolved, given: Mapping[str, object]) -> Fit:
    """Plan a run with the env of ``report``, to whose findings advice is added, and what would be refused.

    given: flags that name the env.
    """
    if report.probed is None or not {"step", "reset"} <= report.times.keys():  # the first reset may have raised
        return Fit()
    # Training does not time vector envs either.
    step = None if VECTOR_KIND in report.kind else report.times["step"].median / max(1, len(report.agents))
    try:
        device = choose_device(resolved.config.run.device)
        resolved = fitted_to_env(resolved, report.probed._replace(step_us=step), device)
        config = resolved.config
        step = step if steps_are_timed(config) else None
        spec = report.probed.spec.for_model(config.model)
        plan = plan_sizes(config, spec, step, report.probed.makes_tensors)
    except Refused as error:
        report.refusal = str(error)
        report.findings = (*report.findings, Finding("violation", "train", f"training refuses it: {error}", ""))
        return Fit()
    advice = list(_advice(report, report.probed, config))
    report.findings = (*report.findings, *(finding for _, finding in advice))
    flags = {**given, **{name: value for chosen, _ in advice for name, value in chosen.items()}}
    values = {**vars(config.sampling), **vars(config.learner)}
    settings = {name: values[name] for name in _SETTINGS} | {"inference": plan.layout.inference}
    reading = (*plan.reading, *map(_action_text, plan.spec.actions))
    return Fit(reading, settings, shlex.join(["python", "-m", "sfactory.train", *words_of(flags)]))


def _action_text(head: ActionHead) -> str:
    """How the policy chooses an action."""
    if isinstance(head, DiscreteHead):
        return f"action {head.key!r} is one of {head.n} choices"
    how = "scaled from [-1, 1] to their bounds" if any(head.bounded) else "without bounds"
    return f"action {head.key!r} is {head.size} number{'s' * (head.size > 1)} ({head.dtype}), {how}"


def _advice(report: Report, probed: Probed, config: Config) -> Iterator[tuple[dict[str, object], Finding]]:
    """Flags that should be set, and why."""
    sampling, name = config.sampling, report.env
    seconds = {call: times.longest / 1e6 for call, times in report.times.items()}
    longest, limit = max(seconds["make"], seconds["reset"]), sampling.reset_timeout_seconds
    if longest > _PART_OF_LIMIT * limit:
        flags: dict[str, object] = {"reset_timeout_seconds": math.ceil(4 * longest)}
        yield flags, _hint("slow.reset", f"making or resetting it took {longest:.1f} s", _typed(flags))
    steps = seconds["step"] * sampling.num_envs_per_worker / sampling.worker_num_splits
    if sampling.step_timeout_seconds and steps > _PART_OF_LIMIT * sampling.step_timeout_seconds:
        flags = {"step_timeout_seconds": math.ceil(4 * steps)}
        yield flags, _hint("slow.step", f"a step took {seconds['step']:.1f} s", f"train with {_typed(flags)}")
    # A family has chosen its frameskip, and how its episodes end: by limits of its own, too.
    has_family = find_family(name) is not None
    if not (report.episodes or report.has_time_limit or has_family) and report.steps >= _ENDLESS:
        # The flag is a wrapper of envs of one agent, which are made one by one.
        is_sole = report.kind == SOLE_KIND
        own = "have step() report agents, or envs of a vector env, as truncated after a number of steps"
        mend = "train with --max_episode_steps=1000" if is_sole else own
        yield {}, _hint("time_limit", f"no episode ended within {report.steps:,} steps", mend)
    if not has_family and takes_frameskip(name) and sampling.env_frameskip == 1:
        mend = "train with --env_frameskip=4 to repeat each action"
        yield {}, _hint("frameskip", "it takes env_frameskip, which is 1", mend)
    if not takes_frameskip(name) and sampling.env_frameskip != 1:
        text = f"--env_frameskip={sampling.env_frameskip} only counts frames: the env does not take it"
        of_function = "give the function in --env a parameter env_frameskip, or " * find_maker(name).own_parameters
        yield {}, _hint("frameskip", text, f"{of_function}leave it out")
    largest = max(map(abs, report.rewards))
    if largest > _LARGE_REWARD and config.algo.reward_scale == 1.0 and config.algo.reward_clip is None:
        mend = f"train with --reward_scale={10.0 ** -math.floor(math.log10(largest)):g}, if learning is unsteady"
        yield {}, _hint("rewards", f"rewards reach {largest:g}", mend)
    numbers = {path for path, leaf in probed.spec.obs if leaf.is_number and not leaf.is_image}
    largest = _LARGE_VALUE * config.model.obs_scale
    unscaled = {path: values for path, values in report.ranges.items() if max(map(abs, values)) > largest}
    if not (config.model.normalize_input or config.model.encoder) and (found := sorted(numbers & unscaled.keys())):
        flags = {"normalize_input": True}
        text = f"observation {found[0]!r} has values up to {max(unscaled[found[0]]):g}"
        yield flags, _hint("scale", text, f"train with {_typed(flags)}")
    if report.children and not probed.makes_tensors:  # which a run makes once
        is_vector = VECTOR_KIND in report.kind
        envs = sampling.num_workers * (sampling.worker_num_splits if is_vector else sampling.num_envs_per_worker)
        processes = f"{len(report.children)} process{'es' * (len(report.children) > 1)}"
        text = f"it starts {processes}; a run here makes it {envs} times"
        fewer = "--num_workers" if is_vector else "--num_envs_per_worker"
        yield {}, _hint("children", text, f"train with fewer {fewer}, if memory is short")


def _hint(code: str, text: str, mend: str) -> Finding:
    return Finding("hint", code, text, mend)


def _typed(flags: Mapping[str, object]) -> str:
    return shlex.join(words_of(flags))


def text_of(report: Report, fit: Fit) -> str:
    """The report for people."""
    lines = [f"{report.env} is {report.kind or 'no env that could be examined'}"]
    lines += [f"  {sentence}" for sentence in fit.reading]
    if report.steps:
        lines += ["", f"{report.steps:,} steps with random actions; {_episodes_text(report)}"]
        lines += [
            f"  observation {path!r}: values of {_from_to(*ends)}" for path, ends in sorted(report.ranges.items())
        ]
        lines += [f"  rewards of {_from_to(*report.rewards)}"]
    lines += [f"  {_times_text(call, times)}" for call, times in report.times.items() if call != "close"]
    lines += [f"  {fact}" for fact in _facts(report)]
    if fit.settings is not None:
        sizes = ", ".join(f"{name}={value}" for name, value in fit.settings.items())
        lines += ["", f"training would begin with {sizes}", f"  {fit.command}"]
    elif report.refusal:
        lines += ["", f"training would refuse it: {_shortened(report.refusal, report)}"]
    for kind in ("violation", "warning", "hint"):
        for finding in report.of_kind(kind):
            often = f" ({finding.number:,} times)" if finding.number > 1 else ""
            lines += ["", f"{kind} {finding.code}{often}: {_shortened(finding.text, report)}"]
            lines += [f"  to do: {finding.mend}"] if finding.mend else []
    counts = ", ".join(
        f"{len(found)} {kind}{'s' if len(found) != 1 else ''}"
        for kind in ("violation", "warning", "hint")
        if (found := report.of_kind(kind))
    )
    return "\n".join([*lines, "", f"{report.env}: {counts or 'nothing was found'}"])


def json_of(report: Report, fit: Fit) -> str:
    """The report for scripts, as one line."""
    whole = {name: value for name, value in vars(report).items() if name not in ("probed", "findings", "is_whole")}
    whole["times_us"] = {call: times._asdict() for call, times in whole.pop("times").items()}
    for kind in ("violation", "warning", "hint"):
        found = [finding._asdict() for finding in report.of_kind(kind)]
        whole[f"{kind}s"] = [{key: value for key, value in each.items() if key != "kind"} for each in found]
    fields: dict[str, Any] = {"clean": not report.of_kind("violation"), **whole, **vars(fit)}
    return json.dumps(fields, default=str)


def _shortened(text: str, report: Report) -> str:
    return text.replace(f"--env={report.env}: ", "")


def _episodes_text(report: Report) -> str:
    if not report.episodes:
        return "no episode ended"
    ended = f"{report.episodes:,} episode{'s' if report.episodes > 1 else ''} ended"
    if not report.lengths[1]:
        return ended
    returns = f"returns of {_from_to(*report.returns)}"
    summed = f", summed over {len(report.agents)} agents" if len(report.agents) > 1 else ""
    return f"{ended}, after {_from_to(*report.lengths)} steps, with {returns}{summed}"


def _from_to(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _times_text(call: str, times: Times) -> str:
    if times.number == 1:
        return f"{call}: {_duration(times.median)}"
    return (
        f"{call}: {_duration(times.median)} (median of {times.number:,}), {_duration(times.p99)} (99%), "
        f"{_duration(times.longest)} (longest)"
    )


def _duration(us: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} us"


def _facts(report: Report) -> Iterator[str]:
    """On memory, seeds, threads and processes."""
    if report.leak_bytes is not None:
        yield f"memory: {report.leak_bytes:,.0f} bytes and {report.leak_objects:.1f} objects more a step"
    if report.same_seed is not None:
        again = "repeats its episode" if report.same_seed else "does not repeat its episode"
        yield f"seeds: a seed {again}; another one gives {'another' if report.other_seed else 'the same'}"
    for what, names in (("threads", report.threads), ("processes", report.children)):
        if report.kind:
            yield f"{what} that it starts: {', '.join(names) or 'none'}"
