"""Keeps the owner and the state of each trajectory slot in shared memory.

NOTE [Slot states]: FREE -> FILLING -> READY -> FREE. Each slot belongs to one split of one actor for the whole run, so
no free list can lose an index. Only the owning actor writes ``filling[slot]``. The actor sets
``pending[slot, policy]``, and only the learner of that policy clears it. FREE means not filling and not pending. A byte
store is atomic; the channel message that follows it (under a mutex) orders it after the contents of the slot.

When an actor dies, main frees the slots that it was filling; no process writes them any more. Its published slots stay
READY. The replacement actor announces them again, in case the first announcement was lost (see NOTE [Incarnations]).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from sfactory.errors import SFactoryError
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec


class SlotState(IntEnum):
    """The state of a slot, derived from the table."""

    FREE = 0
    FILLING = 1
    READY = 2


class IllegalTransition(SFactoryError):
    """A process made a forbidden state change of a slot; this is a bug."""


class SlotTable:
    """The states of all slots, ordered by actor, then by split."""

    def __init__(self, num_actors: int, splits: int, slots_per_split: int, num_policies: int) -> None:
        slots = num_actors * splits * slots_per_split
        self._per_split = slots_per_split
        self._per_actor = splits * slots_per_split
        self._shared = SharedArrays(
            "slots",
            {
                "filling": TensorSpec((slots,), "uint8"),
                "pending": TensorSpec((slots, num_policies), "uint8"),
                "generation": TensorSpec((slots,), "int64"),
                # Valid agent steps ever counted in a slot, and their number before the current filling.
                "counted": TensorSpec((slots, num_policies), "int64"),
                "counted_before": TensorSpec((slots, num_policies), "int64"),
            },
        )

    def slots_of(self, actor: int) -> range:
        return range(actor * self._per_actor, (actor + 1) * self._per_actor)

    def slots_of_split(self, actor: int, split: int) -> range:
        first = actor * self._per_actor + split * self._per_split
        return range(first, first + self._per_split)

    def owner(self, slot: int) -> int:
        return slot // self._per_actor

    def state(self, slot: int) -> SlotState:
        if self._shared["filling"][slot]:
            return SlotState.FILLING
        return SlotState.READY if self._shared["pending"][slot].any() else SlotState.FREE

    def counts(self) -> dict[SlotState, int]:
        """The number of slots in each state."""
        filling = self._shared["filling"] != 0
        ready = int((~filling & self._shared["pending"].any(axis=1)).sum())
        states = {SlotState.FILLING: int(filling.sum()), SlotState.READY: ready}
        return {SlotState.FREE: len(filling) - sum(states.values()), **states}

    def generation(self, slot: int) -> int:
        """How often ``slot`` has been filled."""
        return int(self._shared["generation"][slot])

    def begin(self, slot: int) -> None:
        """FREE -> FILLING, by the owning actor."""
        self._expect(slot, SlotState.FREE)
        self._shared["generation"][slot] += 1
        self._shared["counted_before"][slot] = self._shared["counted"][slot]
        self._shared["filling"][slot] = 1

    def count_steps(self, slot: int, steps: int, policy: int = 0) -> None:
        """Add valid agent steps of ``policy`` to ``slot``, by the owning actor while it fills the slot: a single store,
        so a killed actor has counted all of the steps or none."""
        self._shared["counted"][slot, policy] += steps

    def steps(self, slot: int, policy: int = 0) -> int:
        """Valid agent steps of ``policy`` in ``slot``, from its current or last filling."""
        return int(self._shared["counted"][slot, policy] - self._shared["counted_before"][slot, policy])

    def steps_of(self, actor: int) -> int:
        """All valid agent steps that ``actor`` has counted."""
        return int(self._shared["counted"][self.slots_of(actor)].sum())

    def steps_held(self) -> int:
        """Valid agent steps in slots that are being filled or wait for a learner."""
        held = (self._shared["filling"][:, None] != 0) | (self._shared["pending"] != 0)
        return int((self._shared["counted"] - self._shared["counted_before"])[held].sum())

    def reclaim(self, actor: int) -> int:
        """Free the slots that a dead actor was filling; returns the number of lost steps. Called by main."""
        lost = 0
        for slot in self.slots_of(actor):
            if self._shared["filling"][slot]:
                # If it died inside ``publish``, the slot is complete for the policies that are already pending.
                unpublished = self._shared["pending"][slot] == 0
                counted, before = self._shared["counted"][slot], self._shared["counted_before"][slot]
                lost += int((counted - before)[unpublished].sum())
                self._shared["filling"][slot] = 0
        return lost

    def publish(self, slot: int, *policies: int) -> None:
        """FILLING -> READY for the learners of ``policies`` (FREE without policies), by the owning actor."""
        self._expect(slot, SlotState.FILLING)
        for policy in policies:
            self._shared["pending"][slot, policy] = 1
        self._shared["filling"][slot] = 0

    def is_ready_for(self, slot: int, policy: int) -> bool:
        """True if ``slot`` is READY and not yet released by the learner of ``policy``."""
        return not self._shared["filling"][slot] and bool(self._shared["pending"][slot, policy])

    def waiting_for(self, slot: int) -> list[int]:
        """The policies that have not released ``slot`` yet."""
        return np.flatnonzero(self._shared["pending"][slot]).tolist()

    def release(self, slot: int, policy: int) -> None:
        """Called by the learner of ``policy``: READY -> FREE after the learners of all its policies released it."""
        if not self._shared["pending"][slot, policy]:
            raise IllegalTransition(f"slot {slot} is released by policy {policy}, for which it is not pending")
        self._shared["pending"][slot, policy] = 0

    def _expect(self, slot: int, state: SlotState) -> None:
        found = self.state(slot)
        if found is not state:
            raise IllegalTransition(f"slot {slot} of actor {self.owner(slot)} is {found.name}, not {state.name}")
