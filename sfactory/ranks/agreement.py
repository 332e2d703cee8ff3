"""What ranks decide together between two datasets: whether all go on, and that their weights are still equal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sfactory.clock import Deadline
from sfactory.errors import LearnerFailed, RankLost
from sfactory.ranks.ranks import Ranks

_CHECK_EVERY = 100  # meetings
_WAIT_S = 4.0  # for other ranks, after a stop: main allows a learner 8 s to save
_OWN_STOP_S = 2.0  # torchrun sends one signal to a process after the other


@dataclass(frozen=True)
class Apart:
    """What ranks that learn apart for some ``datasets`` do at a meeting. See NOTE [Local updates].

    counts: of this rank since the last meeting. join: is given those of all ranks, unless none has opened a dataset.
    """

    datasets: int
    counts: Callable[[], Sequence[int]]
    join: Callable[[Sequence[Sequence[int]]], None]


class Agreement:
    """Ranks go on if all have a dataset, and none of them wants to end.

    end: why they do not, "" until then. train_seconds: the most that a rank has counted, at the last meeting.
    """

    def __init__(
        self,
        ranks: Ranks,
        stop: Callable[[], int],
        train_seconds: Callable[[], float],
        checksum: Callable[[], int],
        apart: Apart | None = None,
    ) -> None:
        """stop: the order of main, as ``Stop``. checksum: of the weights, which has to be equal on all ranks."""
        self._ranks, self._stop, self._own_seconds, self._checksum = ranks, stop, train_seconds, checksum
        self._meetings, self._patience = 0, Deadline(float("inf"))
        self._apart = apart
        self._opened = self._due = 0  # datasets since the last meeting; how many there are until the next one
        self.end, self.train_seconds = "", 0.0

    def may_open(self, is_ready: bool, failure: str) -> bool:
        """Meet the others if a dataset ``is_ready``, or this rank wants to end; whether all open their next dataset.

        Ranks that learn apart meet once they have opened all datasets in between, or one of them wants to end.
        failure: of a hook, after which this rank wants to end. Raises RankLost, and LearnerFailed if weights differ.
        """
        wish, is_called = failure or ("it was stopped" if self._stop() else ""), self._ranks.is_called
        if not (is_ready or wish or is_called):
            return False
        if self._opened == self._due or wish or is_called:
            self._meet(wish)
        self._opened += not self.end
        return not self.end

    def _meet(self, wish: str) -> None:
        if wish:
            self._ranks.call()
        checksum = self._checksum() if self._meetings % _CHECK_EVERY == 0 else 0
        self._meetings += 1
        counts = [] if self._apart is None else [*self._apart.counts()]
        word = json.dumps([wish, self._own_seconds(), checksum, self._opened, counts])
        wishes, seconds, checksums, opened, counts_of_all = zip(
            *map(json.loads, self._ranks.meet(word, self._gives_up)), strict=True
        )
        if len(set(checksums)) > 1:
            raise LearnerFailed(
                f"the weights of ranks differ: their checksums are {', '.join(map(str, checksums))}. Ranks compute "
                "alike on equal machines with equal versions of torch; otherwise this is a defect"
            )
        if self._apart is not None and any(opened):
            self._apart.join(counts_of_all)
        # Only now: what they let end is saved, and must be of all ranks.
        self.train_seconds = max(seconds)
        self.end = next((f"rank {rank}: {text}" for rank, text in enumerate(wishes) if text), "")
        self._opened, self._due = 0, 1 if self._apart is None else self._apart.datasets

    def require_own_end(self) -> None:
        """Raise RankLost if the run ends for another rank alone, or one has died since; call it once all is saved."""
        if self.end:
            self._meet_at_the_end()
        patience = Deadline(_OWN_STOP_S)
        while self.end and not self._stop() and not patience.passed:
            time.sleep(0.05)
        if self.end and not self._stop():
            raise RankLost(f"all ranks have ended with {self.end}")

    def _meet_at_the_end(self) -> None:
        """The first rank alone waits for the others: torchrun sends it a signal also where one of them has died."""
        is_first, patience = self._ranks.rank == 0, Deadline(_WAIT_S)
        try:
            self._ranks.meet("", lambda: not is_first or patience.passed or self._stop() > 1)
        except RankLost:
            if is_first:
                raise

    def _gives_up(self) -> bool:
        stop = self._stop()
        if stop and self._patience.left == float("inf"):
            self._patience = Deadline(_WAIT_S)
        return stop > 1 or self._patience.passed
