"""Rules over several flags: what a rule is, and the rules of the run, of sampling and of the network.

Every rule may assume that each value is legal by itself (see ``validation.value_problem``).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sfactory.config.flags import all_flags, values_of
from sfactory.config.schema import Config

_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LIMITS = ("train_for_env_steps", "train_for_frames")


@dataclass(frozen=True)
class Rule:
    """A rule over several flags. ``find`` returns the problem as text, or None; errors blame the first of ``flags``.

    idle: the rule refuses a value without effect. It applies only where the user chose that value.
    """

    flags: tuple[str, ...]
    find: Callable[[Config], str | None]
    idle: bool = False


def refuse(flags: tuple[str, ...], wrong: Callable[[Config], bool], text: str) -> Rule:
    """A rule that returns ``text`` where ``wrong`` holds; ``{flag}`` in the text stands for the value of that flag."""

    def find(config: Config) -> str | None:
        return text.format_map(values_of(config)) if wrong(config) else None

    return Rule(flags, find)


def idle_unless(
    names: tuple[str, ...], need: str, works: Callable[[Any], bool] = bool, value: object = True
) -> tuple[Rule, ...]:
    """One rule for each of ``names``: a value other than its default has no effect unless ``works`` for flag ``need``.

    value: the value of ``need`` that the problem advises.
    """

    def finder(name: str) -> Callable[[Config], str | None]:
        def find(config: Config) -> str | None:
            values = values_of(config)
            if values[name] == all_flags()[name].default or works(values[need]):
                return None
            return f"has no effect as it is: leave it out, or add --{need}={value}"

        return find

    return tuple(Rule((name, need), finder(name), idle=True) for name in names)


def waits_for_learner(config: Config) -> bool:
    """Whether collection stops while the learner trains."""
    return not config.sampling.async_rl or not config.learner.num_batches_to_accumulate


def nearest_multiples(value: int, of: int) -> str:
    """The positive multiples of ``of`` next to ``value``, as text: "nearest are 62 and 64"."""
    below = value // of * of
    return f"nearest is {of}" if below == 0 else f"nearest are {below} and {below + of}"


def _is_path(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half a surrogate pair, which YAML and JSON may spell
        return False
    return bool(text) and "\0" not in text


def _is_endless(config: Config) -> bool:
    values = values_of(config)
    return all(values[name] == all_flags()[name].default for name in _LIMITS)


def _envs_per_split(config: Config) -> str | None:
    envs, splits = config.sampling.num_envs_per_worker, config.sampling.worker_num_splits
    if envs % splits == 0:
        return None
    return f"must be a multiple of worker_num_splits ({splits}): {nearest_multiples(envs, splits)}"


def _rollouts_per_batch(config: Config) -> str | None:
    batch, rollout = config.learner.batch_size, config.sampling.rollout
    if batch % rollout == 0:
        return None
    return f"must be a multiple of rollout ({rollout}): {nearest_multiples(batch, rollout)}"


def _recurrence(config: Config) -> str | None:
    recurrence, rollout = config.learner.recurrence, config.sampling.rollout
    if recurrence == -1 or (recurrence and rollout % recurrence == 0):
        return None
    divisors = [d for d in range(1, rollout + 1) if rollout % d == 0]
    below, above = [d for d in divisors if d < recurrence], [d for d in divisors if d > recurrence]
    nearest = " and ".join(map(str, below[-1:] + above[:1]))
    return f"must be a divisor of rollout ({rollout}), or -1 for the whole rollout: nearest to it: {nearest}"


def rounds_misfit(config: Config, agents: int) -> str | None:
    """Why a dataset of a synchronous run is not a whole number of rounds; None if it is one.

    agents: agents of one env. A dataset that does not fit one agent does not fit more of them, so the rule is checked
    with 1 before the env is known.
    """
    if config.sampling.async_rl:
        return None
    sampling, learner = config.sampling, config.learner
    rows = sampling.num_workers * sampling.num_envs_per_worker * agents
    dataset, around = learner.batch_size * learner.num_batches_per_epoch, rows * sampling.rollout
    if dataset % around == 0:
        return None
    # The least dataset that is both whole rounds and whole batches of whole rollouts.
    whole = math.lcm(around, learner.num_batches_per_epoch * sampling.rollout)
    datasets = (dataset // whole * whole, (dataset // whole + 1) * whole)
    sizes = " or ".join(str(size // learner.num_batches_per_epoch) for size in datasets if size)
    many = f" x {agents} agents" if agents > 1 else ""
    return (
        f"a dataset of {dataset} steps (batch_size x num_batches_per_epoch) is no multiple of a round of {around} "
        f"(num_workers x num_envs_per_worker{many} x rollout), so the policy lag could not be 0: nearest is batch_size "
        f"{sizes}"
    )


RUN_RULES = (
    refuse(
        ("env",),
        lambda config: not config.run.env,
        "an environment is required: a Gymnasium id, a family name or module:function, for example --env=CartPole-v1",
    ),
    refuse(
        ("experiment",),
        lambda config: _EXPERIMENT.fullmatch(config.run.experiment) is None,
        "must be a plain name of 1 to 100 letters, digits, '.', '_' or '-' that begins with a letter or digit, "
        "for example --experiment=cartpole_1; directories belong in --train_dir",
    ),
    refuse(
        ("train_dir",),
        lambda config: not _is_path(config.run.train_dir),
        "must name a directory, for example --train_dir=./train_dir",
    ),
    refuse(
        ("lr_schedule", *_LIMITS),
        lambda config: config.optim.lr_schedule == "linear_decay" and _is_endless(config),
        "the rate falls to 0 at the end of training: say where with --train_for_env_steps, e.g. 10_000_000",
    ),
    refuse(
        ("save_milestones_sec",),
        lambda config: config.checkpoint.save_milestones_sec != -1 and config.checkpoint.save_milestones_sec <= 0,
        "must be greater than 0, or -1 to save no milestones",
    ),
    refuse(
        ("serial_mode", "benchmark"),
        lambda config: config.run.serial_mode and config.benchmark.benchmark,
        "a benchmark measures the processes of a run, and serial mode has none: leave one of the two out",
    ),
    refuse(
        ("sampler_only", "benchmark"),
        lambda config: config.benchmark.sampler_only and not config.benchmark.benchmark,
        "only a benchmark samples without training: add --benchmark=True",
    ),
    refuse(
        ("benchmark_stage", "benchmark"),
        lambda config: config.benchmark.benchmark_stage != "full" and not config.benchmark.benchmark,
        "only a benchmark measures a stage: add --benchmark=True",
    ),
    refuse(
        ("benchmark_stage", "sampler_only"),
        lambda config: config.benchmark.sampler_only and config.benchmark.benchmark_stage in ("env", "learn"),
        "contradicts --sampler_only=True, which is --benchmark_stage=sample: leave one of them out",
    ),
    refuse(
        ("autotune", "serial_mode"),
        lambda config: config.tuning.autotune and config.run.serial_mode,
        "with --serial_mode=True everything is one process, so there is nothing to tune: leave one of the two out",
    ),
    refuse(
        ("autotune", "benchmark_stage", "sampler_only"),
        lambda config: config.tuning.autotune and config.benchmark.stage in ("env", "learn"),
        "finds settings for whole runs and for sampling, and --benchmark_stage={benchmark_stage} measures neither: "
        "leave one of the two out",
    ),
    refuse(
        ("autotune_batch", "autotune"),
        lambda config: config.tuning.autotune_batch and not config.tuning.autotune,
        "only autotune tries batch sizes: add --autotune=True",
    ),
)

SAMPLING_RULES = (
    Rule(("num_envs_per_worker", "worker_num_splits"), _envs_per_split),
    Rule(("batch_size", "rollout"), _rollouts_per_batch),
    Rule(("recurrence", "rollout"), _recurrence),
    Rule(
        ("async_rl", "batch_size", "num_batches_per_epoch", "num_workers", "num_envs_per_worker", "rollout"),
        lambda config: rounds_misfit(config, agents=1),
    ),
    refuse(
        ("policy_workers_per_policy", "inference"),
        lambda config: config.sampling.inference == "local" and config.sampling.policy_workers_per_policy > 1,
        "with --inference=local there are no policy workers: leave it at 1, or use --inference=central",
    ),
    refuse(
        ("policy_workers_per_policy", "num_workers", "inference"),
        lambda config: (
            config.sampling.inference != "local"
            and config.sampling.policy_workers_per_policy > config.sampling.num_workers
        ),
        "must be at most num_workers ({num_workers}): each actor is served by one policy worker, the rest would idle",
    ),
    refuse(
        ("policy_workers_per_policy", "serial_mode"),
        lambda config: config.run.serial_mode and config.sampling.policy_workers_per_policy > 1,
        "must be 1 in serial mode, where everything runs one after the other",
    ),
    refuse(
        ("max_sample_requests_in_flight_per_worker", "async_rl", "num_batches_to_accumulate"),
        lambda config: waits_for_learner(config) and config.sampling.max_sample_requests_in_flight_per_worker > 0,
        "must be 0 where collection waits for the learner anyway (async_rl=False or num_batches_to_accumulate=0)",
    ),
    refuse(
        ("continuous_tanh_scale", "adaptive_stddev"),
        lambda config: config.model.continuous_tanh_scale > 0 and config.model.adaptive_stddev,
        "needs --adaptive_stddev=False: a standard deviation from the network could not follow the squashed mean",
    ),
    refuse(
        ("normalize_input_keys", "normalize_input"),
        lambda config: bool(config.model.normalize_input_keys) and not config.model.normalize_input,
        "has no effect with --normalize_input=False: leave one of the two out",
    ),
)
