"""Reads from checkpoints and summary.json where an earlier session of a run stopped."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import assigned
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.errors import CheckpointError
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Result, Summary
from sfactory.learner.checkpointing import SavedState
from sfactory.learner.setup import Limits
from sfactory.model.custom import own_parts
from sfactory.spec import EnvSpec
from sfactory.tensor_spec import other_places

_FINISHED = (
    "this run is finished: %d env steps in %.0f s of training; raise the limit that it reached "
    "(--train_for_env_steps, --train_for_frames or --train_for_seconds) to train further"
)
_NO_EFFECT = (
    "nothing was trained, so these settings had no effect: %s; for a run with them choose another --experiment, or "
    "--restart_behavior=restart, which renames the old one"
)
_SHOWN = 5  # weights that do not fit

log = logging.getLogger(__name__)


class ResumedPolicy(NamedTuple):
    """Where one policy stopped. best_return: its best mean return, if known. entry: what summary.json has of it."""

    env_steps: int = 0
    train_seconds: float = 0.0
    episodes: int = 0
    best_return: float | None = None
    has_checkpoint: bool = True
    entry: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Resumed:
    """Where an earlier session stopped.

    env_steps, agent_steps, updates: sums over all policies; train_seconds: the longest of them. best_return: the best
    mean return ever, if it is known. summary: the last session's. policies: all of them; () if none has a checkpoint.
    """

    env_steps: int = 0
    agent_steps: int = 0
    train_seconds: float = 0.0
    updates: int = 0
    best_return: float | None = None
    summary: Summary | None = None
    policies: tuple[ResumedPolicy, ...] = ()

    @staticmethod
    def from_checkpoint(
        rundir: RunDir,
        config: Config,
        weight_shapes: Mapping[str, tuple[int, ...]] | None = None,
        given: Collection[str] = (),
        spec: EnvSpec | None = None,
    ) -> Resumed | None:
        """Read the checkpoints that would be resumed; None for a fresh run.

        given: flags that the user set. With them a line says that there is no checkpoint, if --restart_behavior=resume
        is one of them, or an earlier session has begun here. spec: of the env, to warn if observations are others.

        Raises CheckpointError if a policy has checkpoints, but none that can be loaded, is of the kind that was asked
        for and, if given, has the ``weight_shapes`` of Plan.
        """
        numbers, differing = range(config.population.num_policies), dict[str, str]()
        loaded = [_load(rundir, config, weight_shapes, policy, spec, differing) for policy in numbers]
        for text in differing.values():
            log.warning("%s", text)
        known = [saved for saved in loaded if saved is not None]
        summary = Summary.read(rundir.summary_path)
        if not known:
            steps = 0 if summary is None else summary.env_steps
            made = f", although an earlier session made {steps} env steps" if steps else ""
            asked = config.run.restart_behavior == "resume" and "restart_behavior" in given
            if made or asked or (given and rundir.run_json.exists()):
                level = logging.WARNING if made else logging.INFO
                start = assigned("init_from", source) if (source := config.checkpoint.init_from) else "the beginning"
                log.log(level, "no checkpoint in %s%s: the run starts from %s", rundir.path, made, start)
            return None
        policies, stats_avg = list[ResumedPolicy](), config.report.stats_avg
        for policy, saved in enumerate(loaded):
            if saved is None:
                log.warning("policy %d has no checkpoint although others have: it starts from scratch", policy)
            entry = {} if summary is None else summary.of_policy(policy, len(loaded))
            policies.append(_of_policy(saved, entry, stats_avg))
        of_run = None if summary is None else _full_best(vars(summary), stats_avg)
        return Resumed(
            env_steps=sum(saved.run_env_steps for saved in known),
            agent_steps=sum(saved.agent_steps for saved in known),
            train_seconds=max(saved.train_seconds for saved in known),
            updates=sum(saved.train_step for saved in known),
            best_return=_greatest(*(policy.best_return for policy in policies), of_run),
            summary=summary,
            policies=tuple(policies),
        )

    @property
    def episodes(self) -> int:
        """Episodes of all policies."""
        of_policies = sum(policy.episodes for policy in self.policies)
        return max(0 if self.summary is None else self.summary.episodes, of_policies)

    @property
    def together(self) -> ResumedPolicy:
        """All policies together, without a best return."""
        return ResumedPolicy(episodes=self.episodes, entry={} if self.summary is None else vars(self.summary))

    def of(self, policy: int) -> ResumedPolicy:
        """One policy."""
        return self.policies[policy] if self.policies else ResumedPolicy()

    def finished(self, config: Config) -> bool:
        """True if every policy that learns has reached the limits of ``config`` already."""
        limits = Limits.of(config.run, config.frames_per_step)
        learning = [self.policies[policy] for policy in learning_policies(config)]
        return all(limits.reached(policy.env_steps, policy.train_seconds) for policy in learning)

    def say_finished(self, changed: Sequence[str]) -> None:
        """Log that nothing is trained; changed: texts of settings that another run would need."""
        log.info(_FINISHED, self.env_steps, self.train_seconds)
        if changed:
            log.warning(_NO_EFFECT, "; ".join(changed))


def summary_of(config: Config, resumed: Resumed | None, status: Result) -> Summary:
    """The summary of a session that has trained nothing: the earlier one, also if it began at an older checkpoint."""
    resumed = resumed or Resumed()
    earlier, is_latest = resumed.summary, config.checkpoint.load_checkpoint_kind == "latest"
    if earlier is not None and (
        earlier.env_steps == resumed.env_steps if is_latest else earlier.env_steps >= resumed.env_steps
    ):
        return earlier.ended(status)
    return Summary(
        status=status,
        env_steps=resumed.env_steps,
        agent_steps=resumed.agent_steps,
        frames=resumed.env_steps * config.frames_per_step,
        train_seconds=resumed.train_seconds,
        fps=resumed.env_steps / resumed.train_seconds if resumed.train_seconds else None,
        episodes=resumed.episodes,
        best_episode_return_mean=resumed.best_return,
        best_is_full=resumed.best_return is not None,
        updates=resumed.updates,
    )


def _of_policy(saved: SavedState | None, entry: Mapping[str, Any], stats_avg: int) -> ResumedPolicy:
    """A policy, by its checkpoint and its entry in summary.json."""
    episodes, best = int(entry.get("episodes") or 0), _full_best(entry, stats_avg)
    if saved is None:
        return ResumedPolicy(0, 0.0, episodes, _greatest(best), has_checkpoint=False, entry=entry)
    best = _greatest(best, saved.best_objective if saved.best_metric == "reward" else None)
    return ResumedPolicy(saved.env_steps, saved.train_seconds, max(episodes, saved.episodes), best, entry=entry)


def _full_best(entry: Mapping[str, Any], stats_avg: int) -> float | None:
    """The best mean return in ``entry``; None if it may be one of fewer than ``stats_avg`` episodes.

    Earlier versions did not say which it is. The episodes are those of all sessions, and a mean is of one session.
    """
    if (entry.get("episodes") or 0) < stats_avg or entry.get("best_is_full") is False:
        return None
    best: float | None = entry.get("best_episode_return_mean")
    return best


def _greatest(*bests: float | None) -> float | None:
    return max((best for best in bests if best is not None and best > float("-inf")), default=None)


def _load(
    rundir: RunDir,
    config: Config,
    weight_shapes: Mapping[str, tuple[int, ...]] | None,
    policy: int,
    spec: EnvSpec | None,
    differing: dict[str, str],
) -> SavedState | None:
    """The checkpoint of a policy that would be resumed. differing: gets a warning for each way in which observations
    are others than in ``spec``."""
    directory = CheckpointDir(rundir.checkpoint_dir(policy), config.checkpoint.keep_checkpoints)
    wanted = config.checkpoint.load_checkpoint_kind
    kind = directory.kind_to_resume(wanted, policy in learning_policies(config))
    loaded = directory.load_to_resume(kind)
    if loaded is None:
        if directory.holds_any():
            first = assigned("save_best_after", config.checkpoint.save_best_after)
            when = f" (the first is saved after {first} env steps)" if kind == "best" else ""
            raise CheckpointError(
                f"--load_checkpoint_kind={kind}: {directory.path} holds no {kind} checkpoint, but others{when}; resume "
                "from them with another --load_checkpoint_kind, or start over with --restart_behavior=restart"
            )
        return None
    if kind != wanted:
        log.info("policy %d does not learn and has no %s checkpoint: it plays with its latest weights", policy, wanted)
    saved = SavedState.of(loaded.payload, loaded.path)
    if weight_shapes is not None:
        _require_fit(saved.model, loaded.path, weight_shapes, config)
    trained, path = saved.spec, loaded.path
    if spec is not None and trained and (text := other_places(path, trained.obs, spec.part(trained.part_of).obs)):
        differing.setdefault(text.removeprefix(str(path)), text)
    return saved


def _require_fit(
    saved: Mapping[str, object], path: Path, shapes: Mapping[str, tuple[int, ...]], config: Config
) -> None:
    """Raise CheckpointError with each difference if these weights are of another network.

    The learner would notice too, but only after config.json was written and everything was started.
    """
    there = {name: list(value.shape) for name, value in saved.items() if isinstance(value, torch.Tensor)}
    here = {name: list(shape) for name, shape in shapes.items()}
    differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if not differing:
        return
    lines = [f"{name} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here" for name in differing]
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    parts = [assigned(part, name) for part, name in own_parts(config.model).items()]
    own = f", and {' and '.join(parts)} the code" if parts else ""
    raise CheckpointError(
        f"{path} does not fit {' or '.join([assigned('env', config.run.env), *parts])} as it is now: "
        f"{'; '.join(lines[:_SHOWN])}{more}. Give the run the env and --env_kwargs{own} that it was trained with, or "
        "start a new one: with another --experiment, or with --restart_behavior=restart, which renames this one. "
        "Nothing was changed."
    )
