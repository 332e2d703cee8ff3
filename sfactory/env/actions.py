"""Converts rows of actions into the actions of envs.

Readers are built once per split from the action space, so that no step looks anything up or decides per env.
``action_reader`` is for single envs, ``block_reader`` for vector envs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt

from sfactory.action_heads import ActionHead, BoxHead, choices_of_action
from sfactory.spec import ACTION_KEY

Array = npt.NDArray[Any]
Rows = Mapping[str, Array]
ActionReader = Callable[[Rows], list[Any]]
BlockReader = Callable[[Rows], Any]


def action_reader(space: spaces.Space[Any], heads: Sequence[ActionHead], prefix: str = "") -> ActionReader:
    """Return a function that converts action rows {key: [N, ...]} to N actions of ``space``.

    heads: ``EnvSpec.actions``. Discrete actions are numpy integers, as ``space.sample()`` gives them.
    """
    base = f"{prefix}/" if prefix else ""
    if isinstance(space, spaces.Dict | spaces.Tuple) and not space.spaces:  # beside others
        nothing = dict if isinstance(space, spaces.Dict) else tuple
        return lambda rows: [nothing() for _ in next(iter(rows.values()))]
    if isinstance(space, spaces.Dict):
        names = list(space.spaces)
        readers = [action_reader(child, heads, f"{base}{name}") for name, child in space.spaces.items()]
        return lambda rows: [
            dict(zip(names, row, strict=True)) for row in zip(*(read(rows) for read in readers), strict=True)
        ]
    if isinstance(space, spaces.Tuple):
        readers = [action_reader(child, heads, f"{base}{index}") for index, child in enumerate(space.spaces)]
        return lambda rows: list(zip(*(read(rows) for read in readers), strict=True))
    read_array = _array_reader(space, heads, prefix)
    return lambda rows: list(read_array(rows))


def block_reader(space: spaces.Space[Any], heads: Sequence[ActionHead], prefix: str = "") -> BlockReader:
    """Return a function that converts action rows {key: [N, ...]} to the batch of N actions for a vector env.

    ``space``: action space of one env. The env may keep the returned batch.
    """
    base = f"{prefix}/" if prefix else ""
    if isinstance(space, spaces.Dict):
        named = {name: block_reader(child, heads, f"{base}{name}") for name, child in space.spaces.items()}
        return lambda rows: {name: read(rows) for name, read in named.items()}
    if isinstance(space, spaces.Tuple):
        readers = [block_reader(child, heads, f"{base}{index}") for index, child in enumerate(space.spaces)]
        return lambda rows: tuple(read(rows) for read in readers)
    return _array_reader(space, heads, prefix)


def _array_reader(space: spaces.Space[Any], heads: Sequence[ActionHead], prefix: str) -> BlockReader:
    """A reader of the leaf at ``prefix``: rows become a new array [N, *shape] of the space's dtype."""
    where = prefix or ACTION_KEY
    dtype: Any = space.dtype
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda rows: (rows[where] + start).astype(dtype, copy=False)
    head = next((head for head in heads if head.key == where), None)
    if isinstance(head, BoxHead):
        assert isinstance(space, spaces.Box)
        return _box_reader(space, head)
    _, starts = choices_of_action(space, where)
    keys, first, shape = [f"{where}/{index}" for index in range(len(starts))], np.array(starts), space.shape
    assert shape is not None, f"{space!r} was let through by EnvSpec"

    def read(rows: Rows) -> Array:
        actions: Array = np.stack([rows[key] for key in keys], axis=1) + first
        return actions.astype(dtype, copy=False).reshape(-1, *shape)

    return read


def _box_reader(space: spaces.Box, head: BoxHead) -> BlockReader:
    low, high, shape, dtype = space.low.ravel(), space.high.ravel(), space.shape, space.dtype
    key, squash = head.key, _squash(head)
    if all(center == 0.0 for center in head.center) and all(scale == 1.0 for scale in head.scale):

        def clip(rows: Rows) -> Array:
            actions: Array = np.clip(squash(rows[key]), low, high)
            return actions.astype(dtype, copy=False).reshape(-1, *shape)

        return clip

    first, last = np.array(head.low), np.array(head.high)
    center, scale = np.array(head.center), np.array(head.scale)

    def read(rows: Rows) -> Array:
        actions: Array = np.clip(squash(rows[key]), first, last) * scale + center
        # Rounding may lead beyond the bounds by a little.
        return np.clip(actions.astype(dtype, copy=False), low, high).reshape(-1, *shape)

    return read


def _squash(head: BoxHead) -> Callable[[Array], Array]:
    """The tanh of dimensions with two finite bounds if the head is squashed, else the identity."""
    if not head.squashed:
        return lambda actions: actions
    bounded = np.array(head.bounded)
    if bounded.all():
        return np.tanh
    return lambda actions: np.where(bounded, np.tanh(actions), actions)
