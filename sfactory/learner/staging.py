"""Room: host memory for one dataset. In: columns of READY slots. Out: [T+1, R, ...] tensors for one training pass.

R = rows of a dataset: num_batches_per_epoch minibatches of B rows. Copying a slot's rows here is what frees
the slot (unless collection is to wait, see NOTE [Collection waits]).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfactory.layout import Layout
from sfactory.model.dtypes import torch_dtype
from sfactory.shared.trajectories import Slot
from sfactory.spec import EnvSpec

Copy = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # to, of

_SCALARS = {
    "log_prob": torch.float32,
    "value": torch.float32,
    "reward": torch.float32,
    "terminated": torch.bool,
    "valid": torch.bool,
    "policy_version": torch.int32,
}


class CopyThreads:
    """Threads that share the copying for all staging areas of a learner. With one, whoever copies does it alone."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="copy") if threads > 1 else None

    def copy(self, copies: Sequence[Copy]) -> None:
        """Make each of the ``copies``."""
        if self._pool is None:
            for to, of in copies:
                to[:] = of
        else:
            # numpy lets go of the interpreter while it copies; cut along time so that large observations are shared.
            parts = [part for to, of in copies for part in _cut(to, of, self._threads)]
            list(self._pool.map(lambda part: np.copyto(*part), parts))


class Staging:
    """One dataset in the making.

    obs: {key: [T+1, R, ...]}; actions: {key: [T, R, ...]}; scalars: {field of Slot: [T, R]}.
    is_first: [T+1, R] bool; rnn_states: [K+1, R, S] float32; as in Slot.
    ``pin``: page-locked memory, for asynchronous copies to a GPU. ``copying``: who copies;
    None: whoever calls ``take``.
    """

    def __init__(self, spec: EnvSpec, layout: Layout, pin: bool, copying: CopyThreads | None = None) -> None:
        steps, self.rows = layout.rollout, layout.dataset_rows

        def block(times: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((times, self.rows, *shape), dtype=dtype, pin_memory=pin)

        self.obs = {key: block(steps + 1, t.shape, torch_dtype(t.dtype)) for key, t in spec.obs}
        self.actions = {h.key: block(steps, h.tensor.shape, torch_dtype(h.tensor.dtype)) for h in spec.actions}
        self.scalars = {name: block(steps, (), dtype) for name, dtype in _SCALARS.items()}
        self.is_first = block(steps + 1, (), torch.bool)
        self.rnn_states = block(steps // layout.recurrence + 1, (layout.state_size,), torch.float32)
        self._obs_views = _views(self.obs)
        self._action_views = _views(self.actions)
        others = {"is_first": self.is_first, "rnn_states": self.rnn_states}
        self._scalar_views = _views(self.scalars | (others if layout.state_size else {}))
        self._copying = copying or CopyThreads(1)
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
        copies = [(view[:, target], slot.obs[key][:, source]) for key, view in self._obs_views.items()]
        copies += [(view[:, target], slot.actions[key][:, source]) for key, view in self._action_views.items()]
        copies += [(view[:, target], getattr(slot, name)[:, source]) for name, view in self._scalar_views.items()]
        self._copying.copy(copies)
        self.valid_steps += int(np.count_nonzero(self._scalar_views["valid"][:, target]))
        self.filled += count
        return count


def _cut(to: npt.NDArray[Any], of: npt.NDArray[Any], parts: int) -> list[Copy]:
    """Both arrays in at most ``parts`` stretches along time."""
    step = -(-len(to) // parts)
    return [(to[start : start + step], of[start : start + step]) for start in range(0, len(to), step)]


def _views(tensors: dict[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    return {key: tensor.numpy() for key, tensor in tensors.items()}
