"""Replays rows of earlier datasets: for each new row of a dataset k old ones.

k is random with a mean of exactly ``replay_proportion`` (constant for a whole number). Rows keep what their behavior
policy recorded, so that V-trace corrects for it. Source: RLlib's MixInReplay.
"""

from __future__ import annotations

import threading

import numpy as np

from sfactory.learner.staging import Staging
from sfactory.shared.trajectories import Array


class Replay:
    """Keeps the last ``slots`` new rows of all batchers, and replays each with the same probability.

    Due rows without room in a dataset go to the next one. While no row is kept, none is due. rows: number of kept ones.
    """

    def __init__(self, proportion: float, slots: int, include_new: bool, seed: int) -> None:
        """``include_new``: a row may be replayed in the dataset in which it is new."""
        self._proportion, self._slots, self._include_new = proportion, slots, include_new
        self._generator = np.random.default_rng(seed)
        self._kept: list[Array] = []
        self.rows, self._next, self._due = 0, 0, 0
        self._lock = threading.Lock()

    def add_due(self, staging: Staging) -> None:
        """Replay the rows that are due, as far as there is room."""
        with self._lock:
            # Another batcher may have new rows, for which some are due, that are not kept yet.
            count = min(self._due, staging.rows_left) if self.rows else 0
            if count:
                staging.take_replayed(self._kept, self._generator.integers(0, self.rows, count))
                self._due -= count

    def new_rows(self, available: int, rows_left: int) -> int:
        """How many of ``available`` new rows fit into ``rows_left`` with the replayed ones that are drawn for them."""
        with self._lock:
            most = min(available, rows_left)
            if not most or not (self.rows or self._include_new):
                return most
            # k for each of the new rows.
            whole = int(self._proportion)
            draws = np.full(most, whole, np.int64)
            if self._proportion > whole:
                draws += self._generator.random(most) < self._proportion - whole
            # Row i has room if the rows before it and their replayed rows leave some; its own may have to wait.
            before = np.cumsum(draws + 1) - (draws + 1)
            taken = int(np.count_nonzero(before < rows_left))
            self._due += int(draws[:taken].sum())
            return taken

    def mix(self, staging: Staging, first: int, count: int) -> None:
        """The ``count`` rows of ``staging`` from ``first`` on are new: keep them, and replay the rows that are due."""
        if self._include_new:
            self.keep(staging, first, count)
        self.add_due(staging)
        if not self._include_new:
            self.keep(staging, first, count)

    def keep(self, staging: Staging, first: int, count: int) -> None:
        """Keep ``count`` rows of ``staging`` from ``first`` on, in place of the oldest."""
        with self._lock:
            views = staging.views()
            if not self._kept:
                self._kept = [np.zeros((len(view), self._slots, *view.shape[2:]), view.dtype) for view in views]
            first, count = max(first, first + count - self._slots), min(count, self._slots)
            where = (self._next + np.arange(count)) % self._slots
            for kept, view in zip(self._kept, views, strict=True):
                kept[:, where] = view[:, first : first + count]
            self._next = (self._next + count) % self._slots
            self.rows = min(self._slots, self.rows + count)
