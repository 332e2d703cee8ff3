"""Room: READY slots become datasets. In: an inbox. Out: full staging areas; freed slots.

A wide slot may be cut over several datasets, and a dataset joins as many slots as it needs.

Room: who of a learner's threads is at a ring. In: enter, leave. Out: on the status board, since when the first is.

A ring whose lock died with a process keeps whoever uses it for ever. Main notices by this stamp, which covers no time
that a thread does anything else.

Room: what has been announced to a learner, for all its batchers. In: TrajectoryReady. Out: slots, each once.

See NOTE [Who saves waits on no ring]: only batchers come here. Since when one of them has been at a ring is told on the
status board, so that main notices a ring whose lock died with a process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sfactory.clock import BLOCK_S, now
from sfactory.learner.replay import Replay
from sfactory.learner.staging import Staging
from sfactory.messages import SlotFreed, ToActor, ToLearner
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import ALL_ROWS, RowsOf, Slot, TrajectoryBuffer


class RingUsage:
    """For threads of a learner, several of which may be at rings that other processes write or read."""

    def __init__(self, row: StatusRow) -> None:
        self._row = row
        self._since: dict[int, float] = {}
        self._telling = threading.Lock()  # held for the stamp alone, by no one who is at a ring

    def enter_ring(self) -> None:
        """This thread is about to use a ring."""
        with self._telling:
            self._since[threading.get_ident()] = now()
            self._tell()

    def leave_ring(self) -> None:
        """It has."""
        with self._telling:
            del self._since[threading.get_ident()]
            self._tell()

    def _tell(self) -> None:
        self._row.set("in_ring_since", min(self._since.values(), default=0.0))


class SlotRemainder(NamedTuple):
    """Columns of a slot, one row each, that are not copied yet: those from ``start`` on of ``columns``.

    columns: in which the policy acts, in order; a slice if these are all.
    """

    slot: Slot
    start: int
    columns: RowsOf = ALL_ROWS

    @property
    def width(self) -> int:
        """How many columns the policy has in the slot, those that are copied included."""
        return int(self.slot.value.shape[1]) if isinstance(self.columns, slice) else len(self.columns)


class Inbox:
    """Hands out slots in the order they were announced. A slot is in one pair of hands at a time.

    Of several learners each has an inbox of its own, and of a slot that concerns several each copies what it has in it.
    """

    def __init__(
        self,
        policy: int,
        trajectories: TrajectoryBuffer,
        table: SlotTable,
        ring: Channel[ToLearner],
        to_actors: list[Channel[ToActor]],
        row: StatusRow,
        shared: bool = False,
    ) -> None:
        """``shared``: several batchers take, and a thread of its own reads for them, see ``receive``."""
        self._policy, self._table, self._ring, self._to_actors, self._row = policy, table, ring, to_actors, row
        self._at_rings = RingUsage(row) if shared else row
        self._slots = trajectories.slots()
        self._taken = [0] * len(self._slots)  # the filling of each slot that was announced last
        self._waiting: deque[SlotRemainder] = deque()
        self._arrived = threading.Condition() if shared else None

    def wait(self, timeout: float) -> None:
        """Block until there is something to take, up to ``timeout`` seconds."""
        if self._waiting:
            return
        if self._arrived is None:
            self.receive(timeout)
        else:
            with self._arrived:
                self._arrived.wait_for(lambda: bool(self._waiting), timeout)

    def receive(self, timeout: float) -> None:
        """Read what has been announced, blocking up to ``timeout`` seconds if nothing has. One thread alone reads."""
        self._at_rings.enter_ring()
        arrived = self._ring.get(timeout)
        self._at_rings.leave_ring()
        self._row.count_depth(len(arrived))
        for message in arrived:
            if self._is_new(message.slot):
                slot = self._slots[message.slot]
                self._waiting.append(SlotRemainder(slot, 0, slot.columns_of(self._policy)))
        self._tell()

    def take(self, timeout: float) -> SlotRemainder | None:
        """The next rows to copy, once ``wait(timeout)`` is over; None if there are none.

        Whoever takes them gives them back if any are left, or frees the slot.
        """
        self.wait(timeout)
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def take_all(self) -> list[SlotRemainder]:
        """Everything that waits, without waiting. For the only one who takes."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def give_back(self, rest: SlotRemainder) -> None:
        """What was taken is not copied whole: the rest comes before everything else."""
        self._waiting.appendleft(rest)
        self._tell()

    def free(self, slot: Slot) -> None:
        """Nobody needs the slot any more: its actor may fill it again."""
        self._row.add("received_steps", self._table.steps(slot.index, self._policy))
        self._table.release(slot.index, self._policy)
        self._at_rings.enter_ring()
        self._to_actors[self._table.owner(slot.index)].put(SlotFreed(slot.index))
        self._at_rings.leave_ring()

    def _is_new(self, slot: int) -> bool:
        """Whether the slot was not announced before: the actor that replaces a dead one announces what may not be."""
        generation = self._table.generation(slot)
        if not self._table.is_ready_for(slot, self._policy) or self._taken[slot] == generation:
            return False
        self._taken[slot] = generation
        return True

    def _tell(self) -> None:
        if self._arrived is not None:
            with self._arrived:
                self._arrived.notify_all()


class Batcher:
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

    def _copy(self, rest: SlotRemainder, staging: Staging) -> None:
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

    def _mix(self, replay: Replay, rest: SlotRemainder, staging: Staging) -> int:
        """Copy some new rows, and what they owe; returns how many new ones."""
        first = staging.filled
        most = replay.new_rows(rest.width - rest.start, staging.room)
        count = staging.take(rest.slot, rest.start, most, rest.columns)
        replay.mix(staging, first, count)
        return count
