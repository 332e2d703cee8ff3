"""Room: who owns which trajectory slot, and in which state it is. In/out: one byte per slot and fact.

NOTE [Slot life]: FREE -> FILLING -> READY -> FREE. Every slot belongs to one split of one actor for the whole run, so
there is no free list to lose an index from. ``filling[slot]`` is written by the owning actor alone;
``pending[slot, policy]`` is set by the actor and cleared by that policy's learner alone. FREE = not filling and nothing
pending. A byte store is atomic, and the message that follows it through a channel (a mutex inside) orders it after the
slot's contents.

Of an actor that has died main takes back what it was filling, which no process writes any more; what it had published
stays READY, and is announced again by the actor that takes over, in case it was not (see NOTE [Lives]).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from sfactory.errors import SFactoryError
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec


class SlotState(IntEnum):
    """The state of a slot, derived from the bytes of the table."""

    FREE = 0
    FILLING = 1
    READY = 2


class IllegalTransition(SFactoryError):
    """A process moved a slot from a state it may not move it from: a defect."""


class SlotTable:
    """States of all slots. Actor a's slots follow those of actor a - 1, and split s's those of its split s - 1."""

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
                # Valid agent steps that were ever counted in a slot, and those of them before its present filling.
                "counted": TensorSpec((slots, num_policies), "int64"),
                "counted_before": TensorSpec((slots, num_policies), "int64"),
            },
        )

    def slots_of(self, actor: int) -> range:
        """The slots that ``actor`` owns."""
        return range(actor * self._per_actor, (actor + 1) * self._per_actor)

    def slots_of_split(self, actor: int, split: int) -> range:
        """The slots of one split of ``actor``."""
        first = actor * self._per_actor + split * self._per_split
        return range(first, first + self._per_split)

    def owner(self, slot: int) -> int:
        """The actor that owns ``slot``."""
        return slot // self._per_actor

    def state(self, slot: int) -> SlotState:
        """The state of ``slot`` as its bytes stand now."""
        if self._shared["filling"][slot]:
            return SlotState.FILLING
        return SlotState.READY if self._shared["pending"][slot].any() else SlotState.FREE

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
        """So many more valid agent steps of ``policy`` lie in ``slot``; by the owning actor, which is filling it.

        It is a single store: an actor that is killed has counted them or has not.
        """
        self._shared["counted"][slot, policy] += steps

    def steps(self, slot: int, policy: int = 0) -> int:
        """Valid agent steps of ``policy`` that lie in ``slot``, of its present filling or the last one."""
        return int(self._shared["counted"][slot, policy] - self._shared["counted_before"][slot, policy])

    def steps_of(self, actor: int) -> int:
        """Valid agent steps that ``actor`` has ever counted."""
        return int(self._shared["counted"][self.slots_of(actor)].sum())

    def steps_held(self) -> int:
        """Valid agent steps that are being recorded, or wait for the learner of their policy."""
        held = (self._shared["filling"][:, None] != 0) | (self._shared["pending"] != 0)
        return int((self._shared["counted"] - self._shared["counted_before"])[held].sum())

    def reclaim(self, actor: int) -> int:
        """By main, once ``actor`` is dead: what it was filling is FREE again; returns the steps that are lost so."""
        lost = 0
        for slot in self.slots_of(actor):
            if self._shared["filling"][slot]:
                # It may have died within ``publish``: then the slot is complete, for whom it was published to by then.
                unpublished = self._shared["pending"][slot] == 0
                counted, before = self._shared["counted"][slot], self._shared["counted_before"][slot]
                lost += int((counted - before)[unpublished].sum())
                self._shared["filling"][slot] = 0
        return lost

    def publish(self, slot: int, *policies: int) -> None:
        """FILLING -> READY for the learners of these policies (FREE if there is none), by the owning actor."""
        self._expect(slot, SlotState.FILLING)
        for policy in policies:
            self._shared["pending"][slot, policy] = 1
        self._shared["filling"][slot] = 0

    def is_ready_for(self, slot: int, policy: int) -> bool:
        """Whether ``slot`` is READY, and ``policy``'s learner has not released it yet."""
        return not self._shared["filling"][slot] and bool(self._shared["pending"][slot, policy])

    def waiting_for(self, slot: int) -> list[int]:
        """The policies whose learners have not released ``slot`` yet."""
        return np.flatnonzero(self._shared["pending"][slot]).tolist()

    def release(self, slot: int, policy: int) -> None:
        """READY -> FREE once the learners of all its policies have; by that of ``policy``, which has its rows."""
        if not self._shared["pending"][slot, policy]:
            raise IllegalTransition(f"slot {slot} is released by policy {policy}, for which it is not pending")
        self._shared["pending"][slot, policy] = 0

    def _expect(self, slot: int, state: SlotState) -> None:
        found = self.state(slot)
        if found is not state:
            raise IllegalTransition(f"slot {slot} of actor {self.owner(slot)} is {found.name}, not {state.name}")
