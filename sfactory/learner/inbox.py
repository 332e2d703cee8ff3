"""Room: what has been announced to a learner, for all its batchers. In: TrajectoryReady. Out: slots, each once.

See NOTE [Who saves waits on no ring]: only batchers come here.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from sfactory.messages import SlotFreed, ToActor, ToLearner
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import Slot, TrajectoryBuffer


class Rest(NamedTuple):
    """Rows of a slot from ``start`` on, not copied yet."""

    slot: Slot
    start: int


class Inbox:
    """Hands out slots in the order they were announced. A slot is in one pair of hands at a time."""

    def __init__(
        self,
        policy: int,
        trajectories: TrajectoryBuffer,
        table: SlotTable,
        ring: Channel[ToLearner],
        to_actors: list[Channel[ToActor]],
        row: StatusRow,
        batchers: int = 1,
    ) -> None:
        """``batchers``: how many take; one alone needs no lock."""
        self._policy, self._table, self._ring, self._to_actors, self._row = policy, table, ring, to_actors, row
        self._slots = trajectories.slots()
        self._waiting: deque[Rest] = deque()
        self._reading = threading.Lock() if batchers > 1 else None

    def wait(self, timeout: float) -> None:
        """Block until there is something to take, up to ``timeout`` seconds, beside other batchers twice that."""
        if self._waiting:
            return
        if self._reading is None:
            self._receive(timeout)
        elif self._reading.acquire(blocking=timeout > 0, timeout=timeout if timeout > 0 else -1):
            try:
                if not self._waiting:
                    self._receive(timeout)
            finally:
                self._reading.release()

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

    def free(self, slot: Slot) -> None:
        """Nobody needs the slot any more: its actor may fill it again."""
        self._table.release(slot.index, self._policy)
        self._to_actors[self._table.owner(slot.index)].put(SlotFreed(slot.index))

    def _receive(self, timeout: float) -> None:
        arrived = self._ring.get(timeout)
        self._row.count_depth(len(arrived))
        self._waiting.extend(Rest(self._slots[message.slot], 0) for message in arrived)
