"""Room: between a vector env and arrays. In: its batched observations, rows of actions. Out: rows, batched actions.

As ``sfactory.env.adapt`` is for envs one by one: built once per split, so that nothing is decided per step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium.spaces as spaces
import numpy as np

from sfactory.env.adapt import NOT_FINITE, BadObservation, Flaw, Rows, is_finite, leaf_paths
from sfactory.spec import ACTION_KEY, EnvSpec


class BlockWriter:
    """Writes the observations of all N envs of a vector env into one row block per key."""

    def __init__(self, spec: EnvSpec, space: spaces.Space[Any]) -> None:
        """``space``: that of one env."""
        self._leaves = list(zip((key for key, _ in spec.obs), leaf_paths(space), strict=True))
        self._specs = dict(spec.obs)

    def write(self, observations: Any, rows: Rows) -> None:
        """Copy ``observations`` (batched in the env's own structure) into ``rows`` {key: [N, ...]}.

        Raises BadObservation if they do not fit.
        """
        size = len(next(iter(rows.values())))
        try:
            for key, path in self._leaves:
                row = rows[key]
                leaf = reduce(getitem, path, observations)
                if np.shape(leaf) != row.shape:
                    self.check_all(observations, size, "a step")
                np.copyto(row, leaf, casting="same_kind")
        except (ValueError, TypeError, LookupError):
            self.check_all(observations, size, "a step")
            raise

    def check_all(self, observations: Any, size: int, where: str) -> None:
        """Raise BadObservation unless ``observations`` of ``size`` envs have the promised shapes and dtypes."""
        for key, path in self._leaves:
            if misfit := self._misfit(observations, size, key, path):
                raise BadObservation(f"{where}: observation {key!r} {misfit}")

    def flaws(self, observations: Any, size: int) -> dict[int, Flaw]:
        """See Writer. What does not fit does so for all envs."""
        found: dict[int, Flaw] = {}
        for key, path in self._leaves:
            if misfit := self._misfit(observations, size, key, path):
                return dict.fromkeys(range(size), Flaw(key, misfit))
            leaf, dtype = reduce(getitem, path, observations), self._specs[key].dtype
            for env in range(size):
                if not is_finite(leaf[env], dtype):
                    found.setdefault(env, Flaw(key, NOT_FINITE))
        return found

    def _misfit(self, observations: Any, size: int, key: str, path: tuple[Any, ...]) -> str:
        """How a leaf of all envs breaks the promise of the space; '' if it does not."""
        try:
            leaf = np.asarray(reduce(getitem, path, observations))
        except (LookupError, TypeError, ValueError) as error:
            return (
                f"is missing or no array: the vector env gave a {type(observations).__name__} "
                f"({type(error).__name__}: {error})"
            )
        spec = self._specs[key]
        due = (size, *spec.shape)
        if leaf.shape == due and np.can_cast(leaf.dtype, spec.dtype, "same_kind"):
            return ""
        return (
            f"has shape {leaf.shape} and dtype {leaf.dtype}, but {size} envs and the vector env's "
            f"single_observation_space promise {due} and {spec.dtype}"
        )


BlockReader = Callable[[Rows], Any]


def block_reader(space: spaces.Space[Any], prefix: str = "") -> BlockReader:
    """A function from action rows {key: [N, ...]} to the batch of N actions that a vector env takes.

    ``space``: that of one env. Reals are clipped to the bounds of their Box; indices are shifted by the start of their
    Discrete. What is returned is the env's to keep.
    """
    where = prefix or ACTION_KEY
    if isinstance(space, spaces.Discrete):
        return lambda rows: (rows[where] + space.start).astype(space.dtype, copy=False)
    if isinstance(space, spaces.Box):
        low, high, shape, dtype = space.low.ravel(), space.high.ravel(), space.shape, space.dtype
        return lambda rows: np.clip(rows[where], low, high).astype(dtype, copy=False).reshape(-1, *shape)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete_reader(space, where)
    base = f"{prefix}/" if prefix else ""
    if isinstance(space, spaces.Dict):
        named = {name: block_reader(child, f"{base}{name}") for name, child in space.spaces.items()}
        return lambda rows: {name: read(rows) for name, read in named.items()}
    assert isinstance(space, spaces.Tuple), f"{space!r} was let through by EnvSpec"
    readers = [block_reader(child, f"{base}{index}") for index, child in enumerate(space.spaces)]
    return lambda rows: tuple(read(rows) for read in readers)


def _multi_discrete_reader(space: spaces.MultiDiscrete, where: str) -> BlockReader:
    keys = [f"{where}/{index}" for index in range(int(np.asarray(space.nvec).size))]
    start, shape = np.asarray(space.start).ravel(), space.nvec.shape

    def read(rows: Rows) -> Any:
        actions = np.stack([rows[key] for key in keys], axis=1) + start
        return actions.astype(space.dtype, copy=False).reshape(-1, *shape)

    return read
