"""Room: what has been announced to a learner, for all its batchers. In: TrajectoryReady. Out: slots, each once.

See NOTE [Who saves waits on no ring]: only batchers come here. Since when one of them has been at a ring is told on the
status board, so that main notices a ring whose lock died with a process.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from sfactory.learner.at_rings import AtRings
from sfactory.messages import SlotFreed, ToActor, ToLearner
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import ALL_ROWS, RowsOf, Slot, TrajectoryBuffer


class Rest(NamedTuple):
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
        self._at_rings = AtRings(row) if shared else row
        self._slots = trajectories.slots()
        self._taken = [0] * len(self._slots)  # the filling of each slot that was announced last
        self._waiting: deque[Rest] = deque()
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
                self._waiting.append(Rest(slot, 0, slot.columns_of(self._policy)))
        self._tell()

    def take(self, timeout: float) -> Rest | None:
        """The next rows to copy, once ``wait(timeout)`` is over; None if there are none.

        Whoever takes them gives them back if any are left, or frees the slot.
        """
        self.wait(timeout)
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def take_all(self) -> list[Rest]:
        """Everything that waits, without waiting. For the only one who takes."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def give_back(self, rest: Rest) -> None:
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
