"""A Checkpointer with a small model, and what its checkpoints hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.config.schema import AlgoConfig, CheckpointConfig, Config, LearnerConfig, OptimConfig
from sfactory.learner.checkpointing import Checkpointer, Progress
from sfactory.learner.learner import Publisher
from sfactory.learner.train_stats import Learned
from sfactory.model.flat_state import FlatState
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR, small_layout, tiny_model, trainer_for

NEVER = 1e9
LOWEST = float("-inf")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says of itself, and the number that its weights carry."""

    mark: float
    best_return: float


class Desk:
    """A keeper with what it saves to; its model's weights carry a number, which shows which were saved."""

    def __init__(
        self,
        path: Path,
        *,
        save_every_sec: float = NEVER,
        save_best_every_sec: float = 0.0,
        save_best_after: int = 0,
        save_milestones_sec: float = -1.0,
        load_checkpoint_kind: Literal["latest", "best", "milestone"] = "latest",
    ) -> None:
        checkpoint = CheckpointConfig(
            save_every_sec=save_every_sec,
            save_best_every_sec=save_best_every_sec,
            save_best_after=save_best_after,
            save_milestones_sec=save_milestones_sec,
            load_checkpoint_kind=load_checkpoint_kind,
        )
        shared = SharedObjects(VECTOR, small_layout(), weight_bytes=8)
        self.path = path
        self.control = shared.control
        self.trainer = trainer_for(tiny_model(), AlgoConfig(), OptimConfig(), LearnerConfig())
        self.progress = Progress(env_steps=100, agent_steps=100, run_env_steps=100)
        setup = shared.learner(0, Config(checkpoint=checkpoint), 1, "cpu", 1, str(path))
        self.row = shared.status.row("sf-learner-0")
        publisher = Publisher(FlatState(self.trainer.model), setup.weights, 1)
        self.checkpointer = Checkpointer(setup, self.trainer, self.progress, self.row, publisher.check)

    def learn(self, mark: float, mean_return: float) -> None:
        """One dataset later: the weights carry ``mark``, and main says that the mean return is ``mean_return``."""
        self.trainer.train_step += 1
        self.progress.add(Learned(100, 0, 100, 100), Learned())
        with torch.no_grad():
            self.trainer.model.value_head.linear.weight.fill_(mark)
        self.control.tell_objective(0, mean_return)

    def train_until(self, seconds: float) -> None:
        """One dataset later, ``seconds`` of training have passed over all sessions."""
        self.learn(seconds, LOWEST)
        self.progress.earlier_seconds = seconds

    def milestones(self) -> list[float]:
        """The training time of each milestone on disk."""
        found = [
            CheckpointDir(self.path, keep=2).load_at(int(path.stem.split("_")[2]), "milestone")
            for path in sorted((self.path / "milestones").glob("*.pth"))
        ]
        return [loaded.payload["train_seconds"] for loaded in found]

    def best(self) -> Saved | None:
        """The best policy on disk."""
        loaded = CheckpointDir(self.path, keep=2).load("best")
        if loaded is None:
            return None
        marks = {float(mark) for mark in loaded.payload["model"]["value_head.linear.weight"].flatten()}
        assert len(marks) == 1
        return Saved(marks.pop(), loaded.payload["best_objective"])
