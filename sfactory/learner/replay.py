"""Room: trajectories that are learned from again. In: rows of a dataset in the making. Out: some of them, later.

For each new row of a dataset k rows are replayed, k drawn so that its mean is ``replay_proportion`` exactly (a whole
proportion is no draw at all). Source: RLlib's MixInReplay, of whose rows this keeps the behaviour's log-probabilities,
values, versions and memory, so that V-trace corrects for the policy that acted.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.learner.staging import Staging

Array = npt.NDArray[Any]


class Replay:
    """The last ``slots`` rows that came new, by whichever batcher. Each is replayed with the same chance.

    What is owed to a dataset that has no room left is owed to the next one. Rows that come before any is kept owe
    nothing.
    """

    def __init__(self, proportion: float, slots: int, include_new: bool, seed: int) -> None:
        """``include_new``: a row may be replayed at once, beside itself."""
        self._proportion, self._slots, self._include_new = proportion, slots, include_new
        self._generator = np.random.default_rng(seed)
        self._kept: list[Array] = []
        self._rows, self._next = 0, 0
        self._owed = 0
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        """Rows that are kept."""
        return self._rows

    def pay(self, staging: Staging) -> None:
        """Replay what is owed, as far as there is room."""
        with self._lock:
            count = min(self._owed, staging.room)
            if count:
                staging.take_replayed(self._kept, self._generator.integers(0, self._rows, count))
                self._owed -= count

    def new_rows(self, available: int, room: int) -> int:
        """How many of ``available`` new rows a dataset with ``room`` rows left takes: one or more, if it can.

        What they owe is drawn.
        """
        with self._lock:
            most = min(available, room)
            if not most or not (self._rows or self._include_new):
                return most
            draws = self._draws(most)
            # Row i has room if those before it, with what they owe, leave some; what it owes itself may have to wait.
            before = np.cumsum(draws + 1) - (draws + 1)
            taken = int(np.count_nonzero(before < room))
            self._owed += int(draws[:taken].sum())
            return taken

    def mix(self, staging: Staging, first: int, count: int) -> None:
        """The ``count`` rows of ``staging`` from ``first`` on have come new: keep them, and pay what is owed."""
        if self._include_new:
            self.keep(staging, first, count)
        self.pay(staging)
        if not self._include_new:
            self.keep(staging, first, count)

    def keep(self, staging: Staging, first: int, count: int) -> None:
        """Keep ``count`` rows of ``staging`` from ``first`` on, in place of the oldest."""
        with self._lock:
            views = staging.views()
            if not self._kept:
                self._kept = [np.zeros((len(view), self._slots, *view.shape[2:]), view.dtype) for view in views]
            first, count = (first + count - self._slots, self._slots) if count > self._slots else (first, count)
            where = (self._next + np.arange(count)) % self._slots
            for kept, view in zip(self._kept, views, strict=True):
                kept[:, where] = view[:, first : first + count]
            self._next = (self._next + count) % self._slots
            self._rows = min(self._slots, self._rows + count)

    def _draws(self, count: int) -> npt.NDArray[np.int64]:
        """k of each of ``count`` new rows."""
        whole = int(self._proportion)
        draws = np.full(count, whole, np.int64)
        if self._proportion > whole:
            draws += self._generator.random(count) < self._proportion - whole
        return draws
