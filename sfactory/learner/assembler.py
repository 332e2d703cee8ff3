"""Room: READY slots become datasets. In: TrajectoryReady. Out: full staging areas; freed slots.

A wide slot may be cut over several datasets, and a dataset joins as many slots as it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sfactory.clock import BLOCK_S
from sfactory.learner.staging import Staging
from sfactory.messages import SlotFreed, ToActor, ToLearner
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import Slot, TrajectoryBuffer


class _Rest(NamedTuple):
    """Rows of a slot from ``start`` on, not copied yet."""

    slot: Slot
    start: int


class Assembler:
    """Copies slots in the order they were announced, each row exactly once."""

    def __init__(
        self,
        policy: int,
        trajectories: TrajectoryBuffer,
        table: SlotTable,
        inbox: Channel[ToLearner],
        to_actors: list[Channel[ToActor]],
        row: StatusRow,
    ) -> None:
        self._until_trained = trajectories.layout.slots_until_trained
        self._copied: list[Slot] = []  # not free yet, see NOTE [Collection waits]
        self._policy, self._table, self._inbox = policy, table, inbox
        self._to_actors, self._row = to_actors, row
        self._slots = trajectories.slots()
        self._waiting: list[_Rest] = []

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
        if not self._waiting:
            self.receive(timeout)
        while self._waiting and not staging.full:
            self._copy(self._waiting.pop(0), staging)
        return staging.full

    def receive(self, timeout: float) -> None:
        """Wait for announced slots, up to ``timeout`` seconds."""
        arrived = [_Rest(self._slots[message.slot], 0) for message in self._inbox.get(timeout)]
        self._row.count_depth(len(arrived))
        self._waiting += arrived

    def discard(self) -> None:
        """Free every slot that has been announced without copying it, as in sampler-only benchmarks."""
        self.receive(BLOCK_S)
        for rest in self._waiting:
            self._free(rest.slot)
        self._waiting.clear()

    def trained(self) -> None:
        """What was copied has been learned from and published: free the slots that waited for that."""
        for slot in self._copied:
            self._free(slot)
        self._copied.clear()

    def _copy(self, rest: _Rest, staging: Staging) -> None:
        end = rest.start + staging.take(rest.slot, rest.start)
        if end < rest.slot.value.shape[1]:
            self._waiting.insert(0, _Rest(rest.slot, end))
        elif self._until_trained:
            self._copied.append(rest.slot)
        else:
            self._free(rest.slot)

    def _free(self, slot: Slot) -> None:
        self._table.release(slot.index, self._policy)
        self._to_actors[self._table.owner(slot.index)].put(SlotFreed(slot.index))
