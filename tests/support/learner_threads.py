"""Runs the loops of a learner to their end."""

from __future__ import annotations

from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.threads import Threads


def run_to_the_end(worker: LearnerWorker) -> None:
    """As a learner's main thread does, but for the saving."""
    threads = Threads()
    worker.start(threads)
    threads.wait(worker.over)
    threads.leave()
