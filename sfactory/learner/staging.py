"""Room: host memory for one dataset. In: columns of READY slots. Out: [T+1, R, ...] tensors for one training pass.

R = rows of a dataset: num_batches_per_epoch minibatches of B rows. Copying a slot's rows here is what frees
the slot, so no slot is held while the learner trains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfactory.layout import Layout
from sfactory.model.dtypes import torch_dtype
from sfactory.shared.trajectories import Slot
from sfactory.spec import EnvSpec

_SCALARS = {
    "log_prob": torch.float32,
    "value": torch.float32,
    "reward": torch.float32,
    "terminated": torch.bool,
    "valid": torch.bool,
    "policy_version": torch.int32,
}


class Staging:
    """One dataset in the making.

    obs: {key: [T+1, R, ...]}; actions: {key: [T, R, ...]}; scalars: {field of Slot: [T, R]}.
    ``pin``: page-locked memory, for asynchronous copies to a GPU.
    """

    def __init__(self, spec: EnvSpec, layout: Layout, pin: bool) -> None:
        steps, self.rows = layout.rollout, layout.dataset_rows

        def block(times: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((times, self.rows, *shape), dtype=dtype, pin_memory=pin)

        self.obs = {key: block(steps + 1, t.shape, torch_dtype(t.dtype)) for key, t in spec.obs}
        self.actions = {h.key: block(steps, h.tensor.shape, torch_dtype(h.tensor.dtype)) for h in spec.actions}
        self.scalars = {name: block(steps, (), dtype) for name, dtype in _SCALARS.items()}
        self._obs_views = _views(self.obs)
        self._action_views = _views(self.actions)
        self._scalar_views = _views(self.scalars)
        self.filled = 0
        self.valid_steps = 0

    @property
    def full(self) -> bool:
        """True when all R rows are filled."""
        return self.filled == self.rows

    def clear(self) -> None:
        """Start over; contents are overwritten, not wiped."""
        self.filled = 0
        self.valid_steps = 0

    def take(self, slot: Slot, start: int) -> int:
        """Copy rows of ``slot`` from ``start`` on, as many as there is room for; returns how many."""
        count: int = min(slot.value.shape[1] - start, self.rows - self.filled)
        source, target = slice(start, start + count), slice(self.filled, self.filled + count)
        for key, view in self._obs_views.items():
            view[:, target] = slot.obs[key][:, source]
        for key, view in self._action_views.items():
            view[:, target] = slot.actions[key][:, source]
        for name, view in self._scalar_views.items():
            view[:, target] = getattr(slot, name)[:, source]
        self.valid_steps += int(np.count_nonzero(self._scalar_views["valid"][:, target]))
        self.filled += count
        return count


def _views(tensors: dict[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    return {key: tensor.numpy() for key, tensor in tensors.items()}
