"""What ranks decide together between two datasets: whether all go on, and that their weights are still equal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from sfactory.clock import Deadline, looks
from sfactory.errors import LearnerFailed, RankLost
from sfactory.ranks.ranks import Ranks
from sfactory.system.background import in_background

_CHECK_EVERY = 100  # meetings
_WAIT_S = 4.0  # for other ranks, after a stop: main allows a learner 8 s to save
_OWN_STOP_S = 2.0  # torchrun sends one signal to a process after the other
_ENOUGH = "an observer has ended the run"


@dataclass(frozen=True)
class Apart:
    """What ranks that learn apart for some ``datasets`` do at a meeting. See NOTE [Local updates].

    give: keeps what this rank has learned since the last meeting, and returns its counts. exchange: adds that up over
    all ranks, unless none has opened a dataset; then join is given the counts of all. waits: no dataset is collected
    or opened before a meeting is over; otherwise it takes place in another thread, but for ``give`` and ``join``.
    """

    datasets: int
    give: Callable[[], Sequence[int]]
    exchange: Callable[[], None]
    join: Callable[[Sequence[Sequence[int]]], None]
    waits: bool


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
        has_enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """stop: the order of main, as ``Stop``. checksum: of the weights, which has to be equal on all ranks.

        has_enough: whether that order is an observer's, and ends all ranks as a limit does.
        """
        self._ranks, self._stop, self._own_seconds, self._checksum = ranks, stop, train_seconds, checksum
        self._meetings, self._patience = 0, Deadline(float("inf"))
        self._apart, self._has_enough = apart, has_enough
        self._opened = self._due = 0  # datasets since the last meeting began; how many there are until the next one
        self._under_way: Future[list[Any]] | None = None  # a meeting in another thread
        self.end, self.train_seconds = "", 0.0
        self._ends_in_order = True  # there is no reason to end, or an observer alone

    def may_open(self, is_ready: bool, failure: str) -> bool:
        """Meet the others if a dataset ``is_ready``, or this rank wants to end; whether all open their next dataset.

        Ranks that learn apart meet once they have opened all datasets in between, or one of them wants to end; those
        that wait for each other then need no other dataset that is ready, as it is to be collected with the mean.
        failure: of a hook, after which this rank wants to end. Raises RankLost, and LearnerFailed if weights differ.
        """
        wish = failure
        if not wish and self._stop():
            wish = _ENOUGH if self._has_enough() else "it was stopped"
        must_meet = bool(wish) or self._ranks.is_called
        if wish:  # also during a meeting, to which others may come late
            self._ranks.call()
        if self._under_way is not None:
            if must_meet or self._under_way.done():
                words, self._under_way = self._under_way.result(), None
                self._end_meeting(*words)
                # The caller looks at limits before all meet once more: after a limit no rank comes.
                is_ready = is_ready and not must_meet
        elif must_meet or (self._opened >= self._due and (is_ready or self._collects_next)):
            self._begin_meeting(wish, must_meet)
        may_open = is_ready and not self.end
        self._opened += may_open
        return may_open

    @property
    def _collects_next(self) -> bool:
        """Whether all datasets until the next meeting are learned from, and none is collected before it."""
        return self._apart is not None and self._apart.waits and self._opened > 0

    def _begin_meeting(self, wish: str, must_meet: bool) -> None:
        checksum = self._checksum() if self._meetings % _CHECK_EVERY == 0 else 0
        self._meetings += 1
        counts = [] if self._apart is None else [*self._apart.give()]
        meet = partial(self._meet, json.dumps([wish, self._own_seconds(), checksum, self._opened, counts]))
        self._opened, self._due = 0, 1 if self._apart is None else self._apart.datasets
        if must_meet or self._apart is None or self._apart.waits:
            self._end_meeting(*meet())
        else:
            self._under_way = in_background("meeting", meet)

    def _meet(self, word: str) -> list[Any]:
        """The words of all, by part; the weights are added up."""
        words = [*zip(*map(json.loads, self._ranks.meet(word, self._gives_up)), strict=True)]
        _, _, checksums, opened, _ = words
        if len(set(checksums)) > 1:
            raise LearnerFailed(
                f"the weights of ranks differ: their checksums are {', '.join(map(str, checksums))}. Ranks compute "
                "alike on equal machines with equal versions of torch; otherwise this is a defect"
            )
        if self._apart is not None and any(opened):
            self._apart.exchange()
        return words

    def _end_meeting(
        self,
        wishes: Sequence[str],
        seconds: Sequence[float],
        _: Sequence[int],
        opened: Sequence[int],
        counts: Sequence[Sequence[int]],
    ) -> None:
        if self._apart is not None and any(opened):
            self._apart.join(counts)
        # Only now: what they let end is saved, and must be of all ranks.
        self.train_seconds = max(seconds)
        reasons = [(rank, text) for rank, text in enumerate(wishes) if text]
        reasons.sort(key=lambda each: each[1] == _ENOUGH)  # any other reason comes first
        self.end = next((f"rank {rank}: {text}" for rank, text in reasons), "")
        self._ends_in_order = all(text == _ENOUGH for _, text in reasons)

    def require_own_end(self) -> None:
        """Raise RankLost if the run ends for another rank alone, or one has died since; call it once all is saved.

        As at a limit, none is asked for if an observer has ended the run.
        """
        if self._ends_in_order:
            return
        self._meet_at_the_end()
        patience = Deadline(_OWN_STOP_S)
        if not any(self._stop() for _ in looks(lambda: patience.passed, 0.05)):
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
