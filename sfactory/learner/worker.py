"""Room: the loop of a learner. In: READY slots. Out: published weights and checkpoints.

get slots -> assemble a dataset -> learn from it -> publish. With ``--train_in_background_thread`` the last
two run in a thread of their own, while the ring thread assembles the next dataset. The main thread waits, and saves
at the end.
"""

from __future__ import annotations

import torch

from sfactory.clock import BLOCK_S
from sfactory.layout import ACTORS
from sfactory.learner.assembler import Assembler
from sfactory.learner.learning import Learning
from sfactory.learner.ring_thread import RingThread
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.staging import CopyThreads, Staging
from sfactory.learner.train_thread import TrainThread
from sfactory.seeds import Branch, seed_at
from sfactory.shared.control import Stop
from sfactory.shared.status import State, StatusRow, Stopwatch


class LearnerWorker:
    """Assembles datasets and has them learned from, until a limit or a stop."""

    def __init__(self, setup: LearnerSetup, learning: Learning, row: StatusRow) -> None:
        self._setup, self._learning = setup, learning
        self._watch = Stopwatch(row)
        self._own_area: Staging | None = None
        self._copying = CopyThreads(setup.learner.learner_main_loop_num_cores)
        self._assembler = Assembler(setup.policy, setup.trajectories, setup.table, setup.inbox, setup.to_actors, row)

    def run(self) -> None:
        """Work until a limit is reached or a stop is ordered."""
        if self._setup.stage == "sample":
            self._discard()
        elif self._setup.stage == "learn":
            self._learn_again_and_again()
        elif self._setup.learner.train_in_background_thread and not self._setup.layout.slots_until_trained:
            self._run_beside_thread()
        else:
            while not self.over():
                if self.assemble(BLOCK_S):
                    self.learn()

    def assemble(self, timeout: float) -> bool:
        """Take in what has come, blocking up to ``timeout`` seconds for it; True once a dataset is complete."""
        self._watch.before_wait()
        full = self._assembler.advance(self._area(), timeout)
        self._watch.after_wait()
        return full

    def learn(self) -> None:
        """Learn from the complete dataset, and begin a new one."""
        area = self._area()
        self._learning.learn(area)
        area.clear()
        self._assembler.trained()

    def _area(self) -> Staging:
        """The one staging area of a learner that trains between assembling."""
        if self._own_area is None:
            self._own_area = self._staging()
        return self._own_area

    def _staging(self) -> Staging:
        setup = self._setup
        return Staging(setup.spec, setup.layout, pin=setup.device != "cpu", copying=self._copying)

    def over(self) -> bool:
        """True once no further dataset is wanted. Training time begins with the first env step of any actor."""
        sampling_since = [at for at in self._setup.status.values("first_step_at", ACTORS) if at]
        if sampling_since:
            self._learning.progress.start_clock(min(sampling_since))
        return self._setup.control.stopping or self._learning.over

    def _run_beside_thread(self) -> None:
        areas = [self._staging() for _ in range(self._setup.layout.datasets)]
        with TrainThread(self._learning, areas, self._watch, self._setup.control) as thread:

            def give_up() -> bool:
                return self.over() or thread.finished()

            while (staging := thread.free_staging()) is not None and self._assembler.fill(staging, give_up):
                thread.submit(staging)

    def _learn_again_and_again(self) -> None:
        """From one dataset, as if it were a new one each time; nothing more is taken in."""
        area = self._area()
        while not self.over():
            if area.full or self.assemble(BLOCK_S):
                area.scalars["policy_version"].fill_(self._learning.train_step)
                self._watch.before_wait()
                self._watch.after_wait()
                self._learning.learn(area)

    def _discard(self) -> None:
        while not self._setup.control.stopping:
            self._watch.before_wait()
            self._assembler.discard()
            self._watch.after_wait()


def run_learner(setup: LearnerSetup, row: StatusRow) -> None:
    """A learner's life, from birth to the last checkpoint."""
    torch.manual_seed(seed_at(setup.seed, Branch.LEARNER, setup.policy))
    torch.set_num_threads(setup.threads)
    learning = Learning(setup, row)
    learning.begin()
    row.set("state", State.RUNNING)
    worker = LearnerWorker(setup, learning, row)
    rings = RingThread(worker.run)  # see NOTE [Who saves waits on no ring]
    rings.run(worker.over)
    learning.finish(save=setup.control.stop is not Stop.NOW)
    rings.leave()
