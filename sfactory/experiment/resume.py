"""Room: where an earlier session of a run stopped. In: its checkpoints and summary. Out: ``Resumed``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sfactory.checkpoint import CheckpointDir, Payload
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.errors import CheckpointError
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Summary
from sfactory.learner.checkpointing import READABLE_VERSIONS
from sfactory.learner.setup import Limits
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec

_SHOWN = 5  # weights that do not fit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumed:
    """Where an earlier session stopped.

    env_steps, agent_steps, updates: of the checkpoints of all policies together; train_seconds: of the one
    that has most.
    best_return: the best mean return ever, as far as it is known. summary: the last session's.
    steps_of_policies: env steps of each; () if there is no checkpoint.
    policies_without_checkpoint: those that have none although others do.
    """

    env_steps: int = 0
    agent_steps: int = 0
    train_seconds: float = 0.0
    updates: int = 0
    best_return: float | None = None
    summary: Summary | None = None
    steps_of_policies: tuple[int, ...] = ()
    policies_without_checkpoint: tuple[int, ...] = ()

    @staticmethod
    def from_checkpoint(rundir: RunDir, config: Config, spec: EnvSpec | None = None) -> Resumed | None:
        """Facts of the checkpoints that would be resumed; None for a fresh run.

        Raises CheckpointError if there are some of a policy and none can be loaded, there are only others than the kind
        that was asked for, or its weights are not those of a network for an env of ``spec``, if that is given.
        """
        payloads = [_load(rundir, config, spec, policy) for policy in range(config.population.num_policies)]
        known = [payload for payload in payloads if payload is not None]
        summary = Summary.read(rundir.summary_path)
        if not known:
            if summary is not None and summary.env_steps:
                log.warning("an earlier session made %d env steps but saved none: starting at 0", summary.env_steps)
            return None
        for policy, payload in enumerate(payloads):
            if payload is None:
                log.warning("policy %d has no checkpoint, and others have: it begins anew", policy)
        bests = [_best_return(payload) for payload in known]
        if summary is not None and summary.episodes >= config.report.stats_avg:
            bests.append(summary.best_episode_return_mean)
        return Resumed(
            env_steps=sum(_count(payload, "run_env_steps") for payload in known),
            agent_steps=sum(_count(payload, "agent_steps") for payload in known),
            train_seconds=max(float(payload["train_seconds"]) for payload in known),
            updates=sum(int(payload["train_step"]) for payload in known),
            best_return=max((best for best in bests if best is not None), default=None),
            summary=summary,
            steps_of_policies=tuple(0 if payload is None else int(payload["env_steps"]) for payload in payloads),
            policies_without_checkpoint=tuple(policy for policy, payload in enumerate(payloads) if payload is None),
        )

    def finished(self, config: Config) -> bool:
        """True if every policy that learns has reached the limits of ``config`` already."""
        limits = Limits.of(config.run, config.sampling.env_frameskip)
        steps = [self.steps_of_policies[policy] for policy in learning_policies(config) if self.steps_of_policies]
        return limits.reached(min(steps, default=self.env_steps), self.train_seconds)


def _load(rundir: RunDir, config: Config, spec: EnvSpec | None, policy: int) -> Payload | None:
    """The checkpoint of a policy that would be resumed."""
    directory = CheckpointDir(rundir.checkpoint_dir(policy), config.checkpoint.keep_checkpoints)
    kind = config.checkpoint.load_checkpoint_kind
    loaded = directory.load_to_go_on(kind)
    if loaded is None:
        if directory.holds_any():
            raise CheckpointError(
                f"--load_checkpoint_kind={kind}: {directory.path} holds no {kind} checkpoint, but others; go on from "
                "them with another --load_checkpoint_kind, or start anew with --restart_behavior=restart"
            )
        return None
    _require_known(loaded.payload, loaded.path)
    if spec is not None:
        _require_fit(loaded.payload["model"], loaded.path, spec, config)
    return loaded.payload


def _count(payload: Payload, name: str) -> int:
    """A count of steps; of a checkpoint that does not tell it apart from env steps, these."""
    return int(payload[name] if name in payload else payload["env_steps"])


def _best_return(payload: Payload) -> float | None:
    saved = float(payload["best_objective"])
    return saved if payload["best_metric"] == "reward" and saved > float("-inf") else None


def _require_known(payload: Payload, path: Path) -> None:
    """Raise CheckpointError unless the payload is one of a learner's."""
    numbers = ("env_steps", "train_seconds", "train_step", "best_objective")
    known = payload.get("payload_version") in READABLE_VERSIONS and isinstance(payload.get("model"), Mapping)
    if not known or not all(isinstance(payload.get(name), int | float) for name in numbers):
        raise CheckpointError(
            f"{path} was written by another version of sfactory, or by something else; use what wrote it, or start a "
            "new run with another --experiment. Nothing was deleted."
        )


def _require_fit(saved: Mapping[str, object], path: Path, spec: EnvSpec, config: Config) -> None:
    """Raise CheckpointError with each difference if these weights are of another network.

    The learner would find out, too, but only when config.json is written and everything has been started.
    """
    with torch.device("meta"):  # without memory for its weights
        here = {name: tuple(value.shape) for name, value in ActorCritic(spec, config.model).state_dict().items()}
    there = {name: tuple(value.shape) for name, value in saved.items() if isinstance(value, torch.Tensor)}
    differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if not differing:
        return
    lines = [f"{name} is {_told(there.get(name))} there and {_told(here.get(name))} here" for name in differing]
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    raise CheckpointError(
        f"{path} does not fit --env={config.run.env} as it is now: {'; '.join(lines[:_SHOWN])}{more}. Give the run the "
        "env and --env_kwargs that it was trained with, or start a new one with another --experiment. Nothing was "
        "changed."
    )


def _told(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
