"""Room: the loop that trains. In: datasets from the belt. Out: passes over them, in turn; they are released again.

Room: several datasets, learned from in turn, pass after pass. In: what comes new. Out: what to learn from next.

Source: RLlib's MinibatchBuffer. With ``size`` datasets in turn, two passes over one of them are ``size`` passes apart,
so that updates from the others lie between; with one, its passes follow one another as epochs do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sfactory.clock import BLOCK_S, now
from sfactory.config.schema import LearnerConfig
from sfactory.learner.dataset_queue import DatasetQueue
from sfactory.learner.diagnostics import Starvation
from sfactory.learner.learner import Learner
from sfactory.learner.minibatches import Dataset
from sfactory.learner.staging import Columns
from sfactory.shared.status import StatusRow, Stopwatch

I = TypeVar("I")  # noqa: E741


class MinibatchRing(Generic[I]):
    """``size`` places that are visited in turn. Each item gets exactly its passes, unless they are cut short.

    The first item gets ``warmup`` passes, each later one a pass more, up to ``passes``.
    """

    def __init__(self, size: int, passes: int, warmup: int) -> None:
        """``warmup``: 0 is the same as ``passes``."""
        self._items: list[I | None] = [None] * size
        self._left = [0] * size
        self._at = 0
        self._passes, self._next_passes = passes, warmup or passes

    @property
    def live(self) -> list[I]:
        """Items that have passes left, in the order of their places."""
        return [item for item in self._items if item is not None]

    def turn(self, fetch: Callable[[], I | None]) -> I | None:
        """The item whose turn it is; where its place is empty, what ``fetch`` gives: None leaves the turn where it is.

        Every item is answered by ``passed`` before the next turn.
        """
        if self._items[self._at] is None and (item := fetch()) is not None:
            self._items[self._at] = item
            self._left[self._at] = self._next_passes
            self._next_passes = min(self._passes, self._next_passes + 1)
        return self._items[self._at]

    def passed(self, more: bool = True) -> bool:
        """The item whose turn it is had its pass; True if it was the last. ``more``: False cuts its passes short."""
        self._left[self._at] -= 1
        last = not more or self._left[self._at] == 0
        if last:
            self._items[self._at] = None
        self._at = (self._at + 1) % len(self._items)
        return last

    def skip(self) -> None:
        """Nothing new comes to the place whose turn it is: it is the turn of the next item with passes left, if any."""
        for _ in self._items:
            if self._items[self._at] is not None:
                return
            self._at = (self._at + 1) % len(self._items)


class _Open:
    """A dataset that is being learned from, and the memory that it lies in."""

    def __init__(self, columns: Columns, dataset: Dataset) -> None:
        self.columns, self.dataset = columns, dataset


class TrainingLoop:
    """Opens datasets as they come, learns from each as often as it is to be, closes and releases it."""

    def __init__(
        self,
        learning: Learner,
        dataset_queue: DatasetQueue,
        config: LearnerConfig,
        row: StatusRow,
        watch: Stopwatch,
        starvation: Starvation,
    ) -> None:
        self._learning, self._dataset_queue, self._watch, self._starvation = learning, dataset_queue, watch, starvation
        self._row = row
        # A resumed run has warmed up before.
        warmup = 0 if learning.train_step else config.ring_warmup
        self._ring: MinibatchRing[_Open] = MinibatchRing(config.minibatch_ring_size, config.num_epochs, warmup)
        self._nonblocking = config.ring_nonblocking
        self._waited = 0.0  # seconds for the dataset that is to come

    def run(self, give_up: Callable[[], bool]) -> None:
        """Until no more is to be learned, or ``give_up()`` is true. What is open then is closed."""
        while not give_up() and not self._learning.over:
            self._turn()
        for open_ in self._ring.live:
            self._close(open_)

    def _turn(self) -> None:
        """One pass over the dataset whose turn it is, if it has come."""
        learning, ring = self._learning, self._ring
        if learning.wants_no_more or (self._nonblocking and not self._dataset_queue.ready):
            ring.skip()
        open_ = ring.turn(self._fetch)
        if open_ is None:
            return
        more = learning.one_pass(open_.dataset)
        if ring.passed(more):
            self._close(open_)

    def _fetch(self) -> _Open | None:
        if self._learning.wants_no_more:
            return None
        if not self._waited:
            self._row.count_ready(self._dataset_queue.ready)
            self._starvation.begin()
        self._watch.before_wait()
        since = now()
        columns = self._dataset_queue.dataset(BLOCK_S)
        self._waited += now() - since
        self._watch.after_wait()
        if columns is None:
            self._learning.obey()
            self._starvation.look()
            return None
        self._learning.timings.add("load_wait", self._waited)
        self._waited = 0.0
        return _Open(columns, self._learning.open(columns))

    def _close(self, open_: _Open) -> None:
        self._learning.close(open_.dataset)
        self._dataset_queue.release(open_.columns)
