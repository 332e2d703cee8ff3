"""Room: host memory for one dataset. In: columns of READY slots, and replayed ones. Out: a full dataset.

Copying a slot's rows here is what frees the slot (unless collection is to wait, see NOTE [Collection waits]).
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
from sfactory.learner.columns import ENV_STEP, HELD, REPLAYED, RUN_STEP, Columns
from sfactory.shared.trajectories import ALL_ROWS, NOBODY, RowsOf, Slot
from sfactory.spec import EnvSpec

Array = npt.NDArray[Any]
_MADE_HERE = (REPLAYED, HELD, ENV_STEP, RUN_STEP)  # of columns: not copied as they lie in a slot
Copy = tuple[Array, Array]  # to, of


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


class Staging(Columns):
    """One dataset in the making, in host memory. ``copying``: who copies; None: whoever calls ``take``."""

    def __init__(
        self,
        spec: EnvSpec,
        layout: Layout,
        pin: bool,
        copying: CopyThreads | None = None,
        replay: bool = False,
        policy: int = 0,
    ) -> None:
        """``policy``: whose steps are learned from. ``pin``: page-locked memory, for asynchronous copies to a GPU.

        ``replay``: rows may come a second time.
        """
        super().__init__(spec, layout, layout.dataset_rows, torch.device("cpu"), pin, replay)
        self._obs_views = _views(self.obs)
        self._action_views = _views(self.actions)
        others = {"is_first": self.is_first} | ({"rnn_states": self.rnn_states} if layout.state_size else {})
        self._scalar_views = _views({n: t for n, t in self.scalars.items() if n not in _MADE_HERE} | others)
        self._env_steps = [self.scalars[name].numpy() for name in (ENV_STEP, RUN_STEP) if name in self.scalars]
        self._held = self.scalars[HELD].numpy() if HELD in self.scalars else None
        self._replayed = self.scalars[REPLAYED].numpy() if replay else None
        self._policy = policy
        self._copying = copying or CopyThreads(1)
        self.filled = 0
        self.valid_steps = 0
        self.replayed_rows = 0

    @property
    def full(self) -> bool:
        """True when all R rows are filled."""
        return self.filled == self.rows

    @property
    def room(self) -> int:
        """Rows that are not filled yet."""
        return self.rows - self.filled

    def clear(self) -> None:
        """Start over; contents are overwritten, not wiped."""
        self.filled = 0
        self.valid_steps = 0
        self.replayed_rows = 0

    def take(self, slot: Slot, start: int, most: int | None = None, columns: RowsOf = ALL_ROWS) -> int:
        """Copy ``columns`` of ``slot`` from the ``start``-th on, as many as there is room for, or ``most``.

        Returns how many. Steps in which another policy acts are not valid here.
        """
        width = slot.value.shape[1] if isinstance(columns, slice) else len(columns)
        count: int = min(width - start, self.room if most is None else min(most, self.room))
        part, target = slice(start, start + count), slice(self.filled, self.filled + count)
        source = part if isinstance(columns, slice) else columns[part]
        copies = [(view[:, target], slot.obs[key][:, source]) for key, view in self._obs_views.items()]
        copies += [(view[:, target], slot.actions[key][:, source]) for key, view in self._action_views.items()]
        copies += [(view[:, target], getattr(slot, name)[:, source]) for name, view in self._scalar_views.items()]
        self._copying.copy(copies)
        if slot.counts_env_step is not None:
            run = slot.counts_env_step
            own = run if slot.counts_for_policy is None else slot.counts_for_policy
            for to, of in zip(self._env_steps, (own, run), strict=True):
                to[:, target] = of[:, source]
        if slot.policy_id is not None:
            acting = slot.policy_id[:, source]
            self._scalar_views["valid"][:, target] &= acting == self._policy
            if self._held is not None:
                self._held[:, target] = acting == NOBODY
        if self._replayed is not None:
            self._replayed[:, target] = False
        self.valid_steps += int(np.count_nonzero(self._scalar_views["valid"][:, target]))
        self.filled += count
        return count

    def take_replayed(self, sources: Sequence[Array], rows: npt.NDArray[np.int64]) -> None:
        """Copy ``rows`` of columns kept for replay, whose arrays are ``sources``, in the order of ``views``."""
        assert self._replayed is not None
        target = slice(self.filled, self.filled + len(rows))
        for to, of in zip(self.views(), sources, strict=True):
            to[:, target] = of[:, rows]
        self._replayed[:, target] = True
        self.filled += len(rows)
        self.replayed_rows += len(rows)

    def views(self) -> list[Array]:
        """What is copied of each row, as arrays, always in the same order."""
        held = self._env_steps if self._held is None else [*self._env_steps, self._held]
        return [*self._obs_views.values(), *self._action_views.values(), *self._scalar_views.values(), *held]


def _cut(to: Array, of: Array, parts: int) -> list[Copy]:
    """Both arrays in at most ``parts`` stretches along time."""
    step = -(-len(to) // parts)
    return [(to[start : start + step], of[start : start + step]) for start in range(0, len(to), step)]


def _views(tensors: dict[str, Tensor]) -> dict[str, Array]:
    return {key: tensor.numpy() for key, tensor in tensors.items()}
