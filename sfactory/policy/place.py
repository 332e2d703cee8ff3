"""Room: where a policy is to act. In: a request, its slot. Out: the rows that are this policy's."""

from __future__ import annotations

from typing import NamedTuple

from sfactory.messages import ActRequest
from sfactory.shared.trajectories import RowsOf, Slot


class Place(NamedTuple):
    """One step of one split. rows: those in which the policy acts, as a slice if these are all; width: how many."""

    request: ActRequest
    slot: Slot
    rows: RowsOf
    width: int

    @staticmethod
    def of(request: ActRequest, slot: Slot, policy: int) -> Place:
        """Where ``policy`` is asked to act."""
        rows = slot.rows_of(policy, request.t)
        return Place(request, slot, rows, slot.value.shape[1] if isinstance(rows, slice) else len(rows))
