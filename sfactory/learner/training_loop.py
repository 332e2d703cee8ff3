"""The loop that trains: takes datasets from the queue, passes over them in turn, and releases them.

With a ring of several datasets, passes over the others lie between two passes over one of them. Source of the turns:
RLlib's MinibatchBuffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sfactory.clock import BLOCK_S, now
from sfactory.learner.dataset_queue import DatasetQueue
from sfactory.learner.diagnostics import Starvation
from sfactory.learner.learner import Learner
from sfactory.learner.minibatches import Dataset
from sfactory.learner.staging import Columns
from sfactory.shared.status import StatusRow, Stopwatch

I = TypeVar("I")  # noqa: E741


class MinibatchRing(Generic[I]):
    """``size`` places that are visited in turn. Each item gets exactly its passes, unless they are cut short.

    The first item gets ``warmup`` passes, each later one a pass more, up to ``passes``, which may change in between.
    """

    def __init__(self, size: int, passes: int, warmup: int) -> None:
        """``warmup``: 0 is the same as ``passes``."""
        self._items: list[I | None] = [None] * size
        self._left = [0] * size
        self._at = 0
        self.passes = passes
        self._warmup = warmup  # passes of the next item; 0: all

    @property
    def live(self) -> list[I]:
        """Items that have passes left, in the order of their places."""
        return [item for item in self._items if item is not None]

    def turn(self, fetch: Callable[[], I | None]) -> I | None:
        """The item at the present place; an empty place gets what ``fetch`` returns, None leaves the turn where it is.

        Call ``passed`` for every item before the next turn.
        """
        if self._items[self._at] is None and (item := fetch()) is not None:
            self._items[self._at] = item
            self._left[self._at] = min(self._warmup or self.passes, self.passes)
            self._warmup = self._warmup and min(self.passes, self._warmup + 1)
        return self._items[self._at]

    def passed(self, more: bool = True) -> bool:
        """The item at the present place had a pass; True if it was the last. ``more``: False cuts its passes short."""
        self._left[self._at] -= 1
        last = not more or self._left[self._at] == 0
        if last:
            self._items[self._at] = None
        self._at = (self._at + 1) % len(self._items)
        return last

    def skip(self) -> None:
        """Turn to the next item with passes left, if any: nothing new comes to the present place."""
        for _ in self._items:
            if self._items[self._at] is not None:
                return
            self._at = (self._at + 1) % len(self._items)


class TrainingLoop:
    """Opens datasets as they come, passes over each as often as it is due, closes and releases it."""

    def __init__(
        self, learner: Learner, dataset_queue: DatasetQueue, row: StatusRow, watch: Stopwatch, starvation: Starvation
    ) -> None:
        self._learner, self._dataset_queue, self._row = learner, dataset_queue, row
        self._watch, self._starvation = watch, starvation
        config = learner.trainer.learner
        warmup = 0 if learner.trainer.train_step else config.ring_warmup  # a resumed run has warmed up before
        self._ring: MinibatchRing[tuple[Columns, Dataset]]
        self._ring = MinibatchRing(config.minibatch_ring_size, config.num_epochs, warmup)
        self._nonblocking = config.ring_nonblocking
        self._waited = 0.0  # seconds for the next dataset

    def run(self, give_up: Callable[[], bool]) -> None:
        """Train until nothing more is to be learned, or ``give_up()`` is true; closes the datasets open then."""
        learner, ring = self._learner, self._ring
        while not give_up() and not learner.over:
            if learner.wants_no_more or (self._nonblocking and not self._dataset_queue.ready):
                ring.skip()
            ring.passes = learner.trainer.learner.num_epochs
            item = ring.turn(self._fetch)
            if item is not None and ring.passed(learner.one_pass(item[1])):
                self._close(*item)
        for item in ring.live:
            self._close(*item)

    def _fetch(self) -> tuple[Columns, Dataset] | None:
        if self._learner.wants_no_more:
            return None
        if not self._waited:
            self._row.count_ready(self._dataset_queue.ready)
            self._starvation.begin()
        self._watch.before_wait()
        since = now()
        columns = self._dataset_queue.dataset(BLOCK_S)
        may_open = self._learner.may_open(columns is not None)
        self._waited += now() - since
        self._watch.after_wait()
        if columns is None:
            self._learner.execute_command()
            self._starvation.look()
            return None
        if not may_open:
            self._dataset_queue.release(columns)
            return None
        self._learner.timings.add("load_wait", self._waited)
        self._waited = 0.0
        return columns, self._learner.open(columns)

    def _close(self, columns: Columns, dataset: Dataset) -> None:
        self._learner.close(dataset)
        self._dataset_queue.release(columns)
