"""Room: the loop of a learner. In: READY slots. Out: published weights and checkpoints.

get slots -> assemble a dataset -> learn from it -> publish. With ``--train_in_background_thread`` the last
two run in a thread of their own, while this one assembles the next dataset.
"""

from __future__ import annotations

import torch

from sfactory.learner.assembler import Assembler
from sfactory.learner.learning import Learning
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.staging import Staging
from sfactory.learner.train_thread import TrainThread
from sfactory.shared.control import Stop
from sfactory.shared.status import State, StatusRow, Stopwatch


class LearnerWorker:
    """Assembles datasets and has them learned from, until a limit or a stop."""

    def __init__(self, setup: LearnerSetup, learning: Learning, row: StatusRow) -> None:
        self._setup, self._learning = setup, learning
        self._watch = Stopwatch(row)
        self._assembler = Assembler(setup.policy, setup.trajectories, setup.table, setup.inbox, setup.to_actors)

    def run(self) -> None:
        """Work until a limit is reached or a stop is ordered."""
        if self._setup.sampler_only:
            self._discard()
        elif self._setup.learner.train_in_background_thread:
            self._run_beside_thread()
        else:
            self._run_inline()

    def _staging(self) -> Staging:
        return Staging(self._setup.spec, self._setup.layout, pin=self._setup.device != "cpu")

    def _give_up(self) -> bool:
        """True once no further dataset is wanted. Training time begins with the first env step of any actor."""
        sampling_since = [at for at in self._setup.status.values("first_step_at", "sf-actor-") if at]
        if sampling_since:
            self._learning.progress.start_clock(min(sampling_since))
        return self._setup.control.stopping or self._learning.over

    def _run_inline(self) -> None:
        staging, watch = self._staging(), self._watch
        while True:
            watch.before_wait()
            full = self._assembler.fill(staging, self._give_up)
            watch.after_wait()
            if not full:
                return
            self._learning.learn(staging)

    def _run_beside_thread(self) -> None:
        areas = [self._staging() for _ in range(self._setup.layout.datasets)]
        with TrainThread(self._learning, areas, self._watch, self._setup.control) as thread:

            def give_up() -> bool:
                return self._give_up() or thread.finished()

            while (staging := thread.free_staging()) is not None and self._assembler.fill(staging, give_up):
                thread.submit(staging)

    def _discard(self) -> None:
        while not self._setup.control.stopping:
            self._watch.before_wait()
            self._assembler.discard()
            self._watch.after_wait()


def run_learner(setup: LearnerSetup, row: StatusRow) -> None:
    """A learner's life, from birth to the last checkpoint."""
    torch.manual_seed(setup.seed)
    torch.set_num_threads(setup.threads)
    learning = Learning(setup, row)
    learning.begin()
    row.set("state", State.RUNNING)
    LearnerWorker(setup, learning, row).run()
    learning.finish(save=setup.control.stop is not Stop.NOW)
