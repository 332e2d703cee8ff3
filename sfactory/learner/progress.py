"""Room: how far training has come, and what of it is saved. In: trained datasets. Out: checkpoint payloads."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from sfactory.clock import now
from sfactory.errors import CheckpointError
from sfactory.learner.record import Learned
from sfactory.learner.setup import Limits
from sfactory.learner.trainer import Trainer

PAYLOAD_VERSION = 3
READABLE_VERSIONS = (2, PAYLOAD_VERSION)  # 2 knew of one optimiser, Adam, and of no coefficient but its rate


@dataclass
class Progress:
    """Counts over the whole run, resumed sessions included. Steps are trained steps, masked ones not counted.

    env_steps: in which the policy took part. agent_steps: of its agents. run_env_steps: those env steps that
    count for the run, each of which is counted by one policy alone.
    best_objective: the best mean of ``best_metric`` so far, which is what policies are judged by.
    """

    env_steps: int = 0
    agent_steps: int = 0
    run_env_steps: int = 0
    best_metric: str = "reward"
    best_objective: float = float("-inf")
    earlier_seconds: float = 0.0
    started_at: float | None = None

    def add(self, learned: Learned, before: Learned) -> None:
        """More steps were learned from than ``before``."""
        self.agent_steps += learned.fresh - before.fresh
        self.env_steps += learned.env_steps - before.env_steps
        self.run_env_steps += learned.run_steps - before.run_steps

    def start_clock(self, at: float) -> None:
        """Training time counts from monotonic ``at`` on; later calls change nothing."""
        if self.started_at is None:
            self.started_at = at

    @property
    def train_seconds(self) -> float:
        """Seconds of training, start-up excluded, earlier sessions included."""
        return self.earlier_seconds + (0.0 if self.started_at is None else now() - self.started_at)

    def reached(self, limits: Limits) -> bool:
        """True if training is over."""
        return limits.reached(self.env_steps, self.train_seconds)


def payload_of(trainer: Trainer, progress: Progress) -> dict[str, Any]:
    """What a checkpoint holds: plain numbers and tensors only."""
    auxiliary = {} if trainer.auxiliary is None else {"auxiliary": trainer.auxiliary.state_dict()}
    return {
        "payload_version": PAYLOAD_VERSION,
        "model": trainer.model.state_dict(),
        **trainer.updater.state(),
        "coefficients": trainer.coefficients.state(),
        **({} if trainer.target is None else {"target": trainer.target.state_dict()}),
        "train_step": trainer.train_step,
        "env_steps": progress.env_steps,
        "agent_steps": progress.agent_steps,
        "run_env_steps": progress.run_env_steps,
        "train_seconds": progress.train_seconds,
        "best_objective": progress.best_objective,
        "best_metric": progress.best_metric,
        **auxiliary,
    }


def restore(payload: dict[str, Any], where: str, trainer: Trainer, progress: Progress) -> None:
    """Continue from ``payload``; raises CheckpointError if it does not fit the model or its optimiser."""
    if payload.get("payload_version") not in READABLE_VERSIONS:
        raise CheckpointError(f"{where} was written by another version of sfactory; use that, or a new --experiment")
    _restore_weights(payload, where, trainer)
    earlier = {name: payload[name] for name in ("learning_rate",) if name in payload}
    trainer.coefficients.restore(payload.get("coefficients", earlier))
    trainer.train_step = payload["train_step"]
    progress.env_steps = payload["env_steps"]
    progress.agent_steps = payload.get("agent_steps", progress.env_steps)
    progress.run_env_steps = payload.get("run_env_steps", progress.env_steps)  # with one agent they are the same
    progress.earlier_seconds = payload["train_seconds"]
    if payload["best_metric"] == progress.best_metric:
        progress.best_objective = payload["best_objective"]


def take_over(payload: dict[str, Any], where: str, trainer: Trainer) -> None:
    """Weights and optimiser of another policy; raises CheckpointError, with all as it was, if they do not fit."""
    before = {"model": trainer.model.state_dict(), **trainer.updater.state()}
    if trainer.target is not None:
        before["target"] = trainer.target.state_dict()
    if trainer.auxiliary is not None:
        before["auxiliary"] = trainer.auxiliary.state_dict()
    before = copy.deepcopy(before)
    try:
        _restore_weights(payload, where, trainer)
    except CheckpointError:
        _restore_weights(before, where, trainer)
        raise


def _restore_weights(payload: dict[str, Any], where: str, trainer: Trainer) -> None:
    if payload.get("payload_version", PAYLOAD_VERSION) not in READABLE_VERSIONS:
        raise CheckpointError(f"{where} was written by another version of sfactory")
    try:
        trainer.model.load_state_dict(payload["model"])
        _restore_target(trainer, payload.get("target"))
        if trainer.auxiliary is not None:
            trainer.auxiliary.load_state_dict(payload["auxiliary"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{where} does not fit the model of this configuration: {error}") from error
    try:
        trainer.updater.load(payload)
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{where} does not fit the optimizer of this configuration: {error}") from error


def _restore_target(trainer: Trainer, state: dict[str, Any] | None) -> None:
    """Where a target network is wanted that was not saved, it begins as a copy of the model."""
    if trainer.target is None:
        return
    if state is None:
        trainer.target.copy()
    else:
        trainer.target.load_state_dict(state)
