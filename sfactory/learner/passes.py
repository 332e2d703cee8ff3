"""Room: the loop that trains. In: datasets from the belt. Out: passes over them, in turn; they are released again."""

from __future__ import annotations

from collections.abc import Callable

from sfactory.clock import BLOCK_S, now
from sfactory.config.schema import LearnerConfig
from sfactory.learner.belt import Belt
from sfactory.learner.columns import Columns
from sfactory.learner.dataset import Dataset
from sfactory.learner.learning import Learning
from sfactory.learner.minibatch_ring import MinibatchRing
from sfactory.learner.starvation import Starvation
from sfactory.shared.status import StatusRow, Stopwatch


class _Open:
    """A dataset that is being learned from, and the memory that it lies in."""

    def __init__(self, columns: Columns, dataset: Dataset) -> None:
        self.columns, self.dataset = columns, dataset


class Passes:
    """Opens datasets as they come, learns from each as often as it is to be, closes and releases it."""

    def __init__(
        self,
        learning: Learning,
        belt: Belt,
        config: LearnerConfig,
        row: StatusRow,
        watch: Stopwatch,
        starvation: Starvation,
    ) -> None:
        self._learning, self._belt, self._watch, self._starvation = learning, belt, watch, starvation
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
        if learning.wants_no_more or (self._nonblocking and not self._belt.ready):
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
            self._row.count_ready(self._belt.ready)
            self._starvation.begin()
        self._watch.before_wait()
        since = now()
        columns = self._belt.dataset(BLOCK_S)
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
        self._belt.release(open_.columns)
