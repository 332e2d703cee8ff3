"""Converts rows of actions into the actions of a ``TensorEnv``, on its device.

As ``block_reader`` of sfactory/env/actions.py, for tensors: readers are built once from the action space, and their
constants lie on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import torch
from torch import Tensor

from sfactory.action_heads import ActionHead, BoxHead, choices_of_action
from sfactory.spec import ACTION_KEY

TensorRows = Mapping[str, Tensor]
TensorReader = Callable[[TensorRows], Any]


def tensor_reader(
    space: spaces.Space[Any], heads: Sequence[ActionHead], device: torch.device, prefix: str = ""
) -> TensorReader:
    """Return a function that converts action rows {key: [N, ...]} to new tensors in the structure of ``space``.

    ``space``: action space of one env. heads: ``EnvSpec.actions``.
    """
    base = f"{prefix}/" if prefix else ""
    if isinstance(space, spaces.Dict):
        named = {name: tensor_reader(child, heads, device, f"{base}{name}") for name, child in space.spaces.items()}
        return lambda rows: {name: read(rows) for name, read in named.items()}
    if isinstance(space, spaces.Tuple):
        readers = [tensor_reader(child, heads, device, f"{base}{place}") for place, child in enumerate(space.spaces)]
        return lambda rows: tuple(read(rows) for read in readers)
    where = prefix or ACTION_KEY
    dtype = dtype_of(space)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda rows: (rows[where] + start).to(dtype)
    head = next((head for head in heads if head.key == where), None)
    if isinstance(head, BoxHead):
        assert isinstance(space, spaces.Box)
        return _box_reader(space, head, device)
    _, starts = choices_of_action(space, where)
    keys, first = [f"{where}/{place}" for place in range(len(starts))], torch.tensor(starts, device=device)
    shape = space.shape
    assert shape is not None, f"{space!r} was let through by EnvSpec"
    return lambda rows: (torch.stack([rows[key] for key in keys], dim=1) + first).to(dtype).reshape(-1, *shape)


def dtype_of(space: spaces.Space[Any]) -> torch.dtype:
    """Torch's name of the dtype of a leaf."""
    return torch.from_numpy(np.empty(0, space.dtype)).dtype


def _box_reader(space: spaces.Box, head: BoxHead, device: torch.device) -> TensorReader:
    key, dtype, shape, squash = head.key, dtype_of(space), space.shape, _squash(head, device)
    low, high = (torch.tensor(bound.ravel(), device=device) for bound in (space.low, space.high))
    if all(center == 0.0 for center in head.center) and all(scale == 1.0 for scale in head.scale):
        return lambda rows: squash(rows[key]).clamp(low, high).to(dtype).reshape(-1, *shape)
    numbers = (head.low, head.high, head.center, head.scale)
    first, last, center, scale = (torch.tensor(each, dtype=torch.float64, device=device) for each in numbers)

    def read(rows: TensorRows) -> Tensor:
        actions = squash(rows[key]).double().clamp(first, last) * scale + center
        # Rounding may lead beyond the bounds by a little.
        return actions.to(dtype).clamp(low, high).reshape(-1, *shape)

    return read


def _squash(head: BoxHead, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The tanh of dimensions with two finite bounds if the head is squashed, else the identity."""
    if not head.squashed:
        return lambda actions: actions
    if all(head.bounded):
        return torch.tanh
    bounded = torch.tensor(head.bounded, device=device)
    return lambda actions: torch.where(bounded, torch.tanh(actions), actions)
