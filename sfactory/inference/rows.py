"""Room: observations in slots as tensors. In: a slot, a step. Out: views, made once per slot and not once per step."""

from __future__ import annotations

import torch
from torch import Tensor

from sfactory.shared.trajectories import Slot


class ObsRows:
    """Views of the observations of every step of the slots that have been asked for."""

    def __init__(self) -> None:
        self._of: dict[int, list[dict[str, Tensor]]] = {}

    def row(self, slot: Slot, t: int) -> dict[str, Tensor]:
        """{key: [N, ...]} - the observations that step ``t`` of ``slot`` acts on."""
        rows = self._of.get(slot.index)
        if rows is None:
            rows = self._of[slot.index] = _rows_of(slot)
        return rows[t]


def _rows_of(slot: Slot) -> list[dict[str, Tensor]]:
    steps = {key: torch.from_numpy(block).unbind(0) for key, block in slot.obs.items()}
    return [dict(zip(steps, row, strict=True)) for row in zip(*steps.values(), strict=True)]
