"""Room: READY slots become datasets. In: an inbox. Out: full staging areas; freed slots.

A wide slot may be cut over several datasets, and a dataset joins as many slots as it needs.
"""

from __future__ import annotations

from collections.abc import Callable

from sfactory.clock import BLOCK_S
from sfactory.learner.inbox import Inbox, Rest
from sfactory.learner.replay import Replay
from sfactory.learner.staging import Staging
from sfactory.shared.trajectories import Slot


class Assembler:
    """Copies slots in the order they were announced, each row exactly once. One for each batcher."""

    def __init__(self, inbox: Inbox, slots_until_trained: bool, replay: Replay | None = None) -> None:
        """``replay``: what mixes rows in that have been learned from before, shared by all batchers."""
        self._inbox, self._until_trained, self._replay = inbox, slots_until_trained, replay
        self._copied: list[Slot] = []  # not free yet, see NOTE [Collection waits]

    def fill(self, staging: Staging, give_up: Callable[[], bool]) -> bool:
        """Fill ``staging`` from its start, blocking for slots; False if ``give_up()`` came true before it was full."""
        staging.clear()
        while not staging.full:
            if give_up():
                return False
            self.advance(staging, BLOCK_S)
        return True

    def advance(self, staging: Staging, timeout: float) -> bool:
        """Copy what has been announced, blocking up to ``timeout`` seconds if nothing has; True once full."""
        if self._replay is not None:
            self._replay.pay(staging)
        while not staging.full and (rest := self._inbox.take(timeout)) is not None:
            self._copy(rest, staging)
            timeout = 0.0
        return staging.full

    def receive(self, timeout: float) -> None:
        """Wait for announced slots, up to ``timeout`` seconds; not if some that were announced are not copied yet."""
        self._inbox.wait(timeout)

    def discard(self) -> None:
        """Free every slot that has been received without copying it, as in sampler-only benchmarks."""
        self.trained()
        for rest in self._inbox.take_all():
            self._inbox.free(rest.slot)

    def trained(self) -> None:
        """What was copied has been learned from and published: free the slots that waited for that."""
        for slot in self._copied:
            self._inbox.free(slot)
        self._copied.clear()

    def _copy(self, rest: Rest, staging: Staging) -> None:
        slot = rest.slot
        if self._replay is None:
            count = staging.take(slot, rest.start, columns=rest.columns)
        else:
            count = self._mix(self._replay, rest, staging)
        if rest.start + count < rest.width:
            self._inbox.give_back(rest._replace(start=rest.start + count))
        elif self._until_trained:
            self._copied.append(slot)
        else:
            self._inbox.free(slot)

    def _mix(self, replay: Replay, rest: Rest, staging: Staging) -> int:
        """Copy some new rows, and what they owe; returns how many new ones."""
        first = staging.filled
        most = replay.new_rows(rest.width - rest.start, staging.room)
        count = staging.take(rest.slot, rest.start, most, rest.columns)
        replay.mix(staging, first, count)
        return count
