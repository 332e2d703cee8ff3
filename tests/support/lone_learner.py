"""A learner and its parts without a run around them, and what they learned, saved, published and reported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from sfactory.checkpoint import CheckpointDir, Payload
from sfactory.config.flags import config_of
from sfactory.config.schema import CheckpointConfig, Config
from sfactory.layout import Layout
from sfactory.learner.checkpointing import Checkpointer, Progress
from sfactory.learner.learner import Learner, Publisher
from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.staging import Staging
from sfactory.learner.threads import Threads
from sfactory.learner.train_stats import Learned
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState, flat_bytes
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR, small_layout, tiny_model, trainer_for

M = TypeVar("M")
NEVER = 1e9
LOWEST = float("-inf")
# A dataset of one minibatch: 4 rows of 5 steps.
FLAGS: dict[str, Any] = {
    "env": "any",
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "worker_num_splits": 1,
    "rollout": 5,
    "batch_size": 20,
    "encoder_mlp_layers": (8,),
}


class LoneLearner:
    """A ``Learner`` that has begun, with all that a run shares with it. ``area``: a full, valid dataset, made up."""

    def __init__(self, checkpoints: Path | None = None, **flags: Any) -> None:
        self.config = config_of({**FLAGS, **flags})
        model = ActorCritic(VECTOR, self.config.model)
        sampling, population = self.config.sampling, self.config.population
        self.layout = Layout.plan(sampling, self.config.learner, "central", model.state_size, population=population)
        self.shared = SharedObjects(VECTOR, self.layout, flat_bytes(model))
        self.setup = self.shared.learner(
            0, self.config, 1, "cpu", 1, None if checkpoints is None else str(checkpoints / "checkpoint_p0")
        )
        self.row = self.shared.status.row("sf-learner-0")
        torch.manual_seed(11)
        self.learning = Learner(self.setup, self.row)
        self.learning.begin()
        self.area = Staging(VECTOR, self.layout, pin=False, replay=bool(self.config.learner.replay_proportion))
        self.area.obs["obs"].normal_(generator=torch.Generator().manual_seed(2))
        self.area.scalars["valid"].fill_(True)

    def learn(self) -> None:
        """From ``area``, as if it were new."""
        self.learning.learn(self.area)

    def saved(self) -> Payload | None:
        """Payload of the latest checkpoint."""
        assert self.setup.checkpoint_dir is not None
        loaded = CheckpointDir(self.setup.checkpoint_dir, keep=2).load()
        return None if loaded is None else loaded.payload

    def messages(self, kind: type[M]) -> list[M]:
        """Messages of that kind that have come to main and were not asked for before; the others are lost."""
        return [message for message in self.shared.learners_to_main[0].get(1) if isinstance(message, kind)]


def run_to_the_end(worker: LearnerWorker) -> None:
    """Run the loops of a learner as its main thread does, but for the saving."""
    threads = Threads()
    worker.start(threads)
    threads.wait(worker.over)
    threads.leave()


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says of itself, and the number that its weights carry."""

    mark: float
    best_return: float


class LoneCheckpointer:
    """A checkpointer and what it saves; the model's weights carry a number, which shows which were saved."""

    def __init__(self, path: Path, **fields: Any) -> None:
        """``fields``: of CheckpointConfig; nothing is saved by time unless they say so."""
        defaults = {"save_every_sec": NEVER, "save_best_every_sec": 0.0, "save_best_after": 0}
        checkpoint = CheckpointConfig(**{**defaults, **fields})
        shared = SharedObjects(VECTOR, small_layout(), weight_bytes=8)
        self.path = path
        self.control = shared.control
        self.trainer = trainer_for(tiny_model())
        self.progress = Progress(env_steps=100, agent_steps=300, run_env_steps=100)
        setup = shared.learner(0, Config(checkpoint=checkpoint), 1, "cpu", 1, str(path))
        self.row = shared.status.row("sf-learner-0")
        publisher = Publisher(FlatState(self.trainer.model), setup.weights, 1)
        self.checkpointer = Checkpointer(setup, self.trainer, self.progress, self.row, publisher.check)

    def learn(self, mark: float, mean_return: float = LOWEST) -> None:
        """One dataset later: the weights carry ``mark``, and main says that the mean return is ``mean_return``."""
        self.trainer.train_step += 1
        self.progress.add(Learned(200, 0, 100, 50), Learned())
        with torch.no_grad():
            self.trainer.model.value_head.linear.weight.fill_(mark)
        self.control.tell_objective(0, mean_return)

    def train_until(self, seconds: float, mean_return: float = LOWEST) -> None:
        """One dataset later, ``seconds`` of training have passed over all sessions, which the weights carry."""
        self.learn(seconds, mean_return)
        self.progress.earlier_seconds = seconds

    def save_after(self, mark: float, mean_return: float = LOWEST) -> None:
        """``learn``, and save what is due."""
        self.learn(mark, mean_return)
        self.checkpointer.after_dataset()

    def save_at(self, seconds: float) -> None:
        """``train_until``, and save what is due."""
        self.train_until(seconds)
        self.checkpointer.after_dataset()

    def latest(self) -> Any:
        """Payload of the latest checkpoint on disk, None without one."""
        loaded = CheckpointDir(self.path, keep=2).load()
        return None if loaded is None else loaded.payload

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
