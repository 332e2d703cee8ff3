"""Copies slots that are ready into staging areas, as datasets, and frees the slots.

A wide slot may be cut over several datasets, and a dataset joins as many slots as it needs. The status board shows
since when a thread has been at a ring, so that main notices a ring that is locked by a dead process; only batchers use
the rings of a learner, see NOTE [Saving waits for no ring].
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sfactory.clock import BLOCK_S, now
from sfactory.learner.replay import Replay
from sfactory.learner.staging import Staging
from sfactory.messages import SlotFreed
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import ALL_ROWS, RowsOf, Slot


class RingUsage:
    """Keeps on the status board since when any thread of a learner has been at a ring."""

    def __init__(self, row: StatusRow) -> None:
        self._row = row
        self._since: dict[int, float] = {}
        self._lock = threading.Lock()  # never held at a ring

    def enter_ring(self) -> None:
        """Call before this thread uses a ring."""
        with self._lock:
            self._since[threading.get_ident()] = now()
            self._row.set("in_ring_since", min(self._since.values()))

    def leave_ring(self) -> None:
        """Call after it."""
        with self._lock:
            del self._since[threading.get_ident()]
            self._row.set("in_ring_since", min(self._since.values(), default=0.0))


class SlotRemainder(NamedTuple):
    """Columns of a slot that are not copied yet: ``columns``, in which the policy acts, from ``start`` on."""

    slot: Slot
    start: int
    columns: RowsOf = ALL_ROWS

    @property
    def left(self) -> int:
        """How many columns are not copied yet."""
        width: int = self.slot.value.shape[1] if isinstance(self.columns, slice) else len(self.columns)
        return width - self.start


class Inbox:
    """Hands out a learner's slots to its batchers, in the order they were announced, each to one batcher at a time."""

    def __init__(self, policy: int, shared: SharedObjects, row: StatusRow, several: bool = False) -> None:
        """``several``: several batchers take, and another thread reads for them, see ``receive``."""
        self._policy, self._table, self._row = policy, shared.table, row
        self._ring, self._to_actors = shared.to_learners[policy], shared.to_actors
        self._at_rings = RingUsage(row) if several else row
        self._slots = shared.trajectories.slots()
        self._taken = [0] * len(self._slots)  # generation of each slot that was announced last
        self._waiting: deque[SlotRemainder] = deque()
        self._arrived = threading.Condition() if several else None

    def wait(self, timeout: float) -> None:
        """Block until there is something to take, up to ``timeout`` seconds."""
        if self._arrived is not None:
            with self._arrived:
                self._arrived.wait_for(lambda: bool(self._waiting), timeout)
        elif not self._waiting:
            self.receive(timeout)

    def receive(self, timeout: float) -> None:
        """Read announcements, blocking up to ``timeout`` seconds for the first. Call from one thread only."""
        self._at_rings.enter_ring()
        arrived = self._ring.get(timeout)
        self._at_rings.leave_ring()
        self._row.count_depth(len(arrived))
        for message in arrived:
            if self._is_new(message.slot):
                slot = self._slots[message.slot]
                self._waiting.append(SlotRemainder(slot, 0, slot.columns_of(self._policy)))
        self._notify()

    def take(self, timeout: float) -> SlotRemainder | None:
        """The next rows to copy, after ``wait(timeout)``, if any; then call ``free``, or ``give_back`` the rest."""
        self.wait(timeout)
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def give_back(self, rest: SlotRemainder) -> None:
        """Put ``rest`` first in the queue: it is not copied yet."""
        self._waiting.appendleft(rest)
        self._notify()

    def free(self, slot: Slot) -> None:
        """Release the slot: its actor may fill it again once all learners have released it."""
        self._row.add("received_steps", self._table.steps(slot.index, self._policy))
        self._table.release(slot.index, self._policy)
        self._at_rings.enter_ring()
        self._to_actors[self._table.owner(slot.index)].put(SlotFreed(slot.index))
        self._at_rings.leave_ring()

    def _is_new(self, slot: int) -> bool:
        """False for a second announcement: the actor that replaces a dead one repeats what may have been lost."""
        generation = self._table.generation(slot)
        if not self._table.is_ready_for(slot, self._policy) or self._taken[slot] == generation:
            return False
        self._taken[slot] = generation
        return True

    def _notify(self) -> None:
        if self._arrived is not None:
            with self._arrived:
                self._arrived.notify_all()


class Batcher:
    """Copies slots in the order they were announced, each row exactly once. One for each batcher thread."""

    def __init__(self, inbox: Inbox, slots_until_trained: bool, replay: Replay | None = None) -> None:
        """``replay``: shared by all batchers; None without replayed rows."""
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
        """Copy announced slots, blocking up to ``timeout`` seconds for the first; True once full."""
        if self._replay is not None:
            self._replay.add_due(staging)
        while not staging.full and (rest := self._inbox.take(timeout)) is not None:
            self._copy(rest, staging)
            timeout = 0.0
        return staging.full

    def discard(self) -> None:
        """Free all received slots without copying them."""
        self.trained()
        while (rest := self._inbox.take(0)) is not None:
            self._inbox.free(rest.slot)

    def trained(self) -> None:
        """After training on the copied rows and publishing: free the slots that waited for it."""
        for slot in self._copied:
            self._inbox.free(slot)
        self._copied.clear()

    def _copy(self, rest: SlotRemainder, staging: Staging) -> None:
        slot, replay, first = rest.slot, self._replay, staging.filled
        most = rest.left if replay is None else replay.new_rows(rest.left, staging.rows_left)
        count = staging.take(slot, rest.start, most, rest.columns)
        if replay is not None:
            replay.mix(staging, first, count)
        if count < rest.left:
            self._inbox.give_back(rest._replace(start=rest.start + count))
        elif self._until_trained:
            self._copied.append(slot)
        else:
            self._inbox.free(slot)
