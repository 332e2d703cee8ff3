"""A learner without a run around it, and what it saved and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from sfactory.checkpoint.directory import CheckpointDir, Payload
from sfactory.config.flags import config_of
from sfactory.layout import Layout
from sfactory.learner.learner import Learner
from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.staging import Staging
from sfactory.messages import TrajectoryReady
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import flat_bytes
from sfactory.process.threads import Threads
from sfactory.ranks.ranks import ALONE, Ranks
from sfactory.shared.objects import SharedObjects
from tests.support.parts import VECTOR, small_run

M = TypeVar("M")
# A dataset of one minibatch: 4 rows of 5 steps.
FLAGS = small_run(workers=1, envs=4, rollout=5, batch_size=20)


class LoneLearner:
    """A ``Learner`` that has begun, with all that a run shares with it. ``area``: a full, valid dataset, made up."""

    def __init__(
        self, checkpoints: Path | None = None, device: str = "cpu", ranks: Ranks = ALONE, **flags: Any
    ) -> None:
        self.config = config_of({**FLAGS, **flags})
        model = ActorCritic(VECTOR, self.config.model)
        sampling, population = self.config.sampling, self.config.population
        self.layout = Layout.plan(sampling, self.config.learner, "central", model.state_size, population=population)
        self.shared = SharedObjects(VECTOR, self.layout, flat_bytes(model))
        self.setup = LearnerSetup(
            *(self.config, self.shared, 0, 1, device, 1),
            checkpoint_dir=None if checkpoints is None else str(checkpoints / "checkpoint_p0"),
        )
        self.row = self.shared.status.row("sf-learner-0")
        torch.manual_seed(11)
        self.learning = Learner(self.setup, self.row, ranks)
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


def send(lone: LoneLearner, index: int, first: int = 0) -> None:
    """Do what an actor does with a complete slot; its rows carry the rewards ``first``, ``first`` + 1, ..."""
    shared = lone.shared
    shared.table.begin(index)
    slot = shared.trajectories.slot(index)
    slot.reward[...] = first + np.arange(lone.layout.rows)
    slot.valid.fill(True)
    shared.table.publish(index, 0)
    shared.to_learners[0].put(TrajectoryReady(shared.table.owner(index), index))


def run_to_the_end(worker: LearnerWorker) -> None:
    """Run the loops of a learner as its main thread does, but for the saving."""
    threads = Threads()
    worker.start(threads)
    threads.wait(worker.over)
    threads.leave()
