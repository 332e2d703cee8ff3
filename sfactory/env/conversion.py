"""Converts between env objects and arrays: observations into rows, and action rows into env actions.

Readers and writers are built once per split from the env's spaces, so that no step looks anything up or decides per
env. ``ObsWriter`` and ``action_reader`` are for single envs, ``BlockWriter`` and ``block_reader`` for vector envs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt

from sfactory.errors import SFactoryError
from sfactory.spec import ACTION_KEY, EnvSpec

Array = npt.NDArray[Any]
Rows = Mapping[str, Array]


class BadObservation(SFactoryError):
    """An observation does not have the shape or dtype of the env's observation space."""


NOT_FINITE = "holds NaN or infinity"
REWARD = "reward"


class Flaw(NamedTuple):
    """Why data from an env is invalid.

    key: path of the observation, or REWARD. text: the problem. agent: added to error messages of multi-agent envs.
    """

    key: str
    text: str
    agent: str = ""

    def __str__(self) -> str:
        what = REWARD if self.key == REWARD else f"observation {self.key!r}"
        return f"{what} {self.text}{self.agent}"


def leaf_paths(space: spaces.Space[Any], path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Index paths of the leaves, in the order of ``EnvSpec.obs``."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [leaf for name, _, child in _children(space, "") for leaf in leaf_paths(child, (*path, name))]
    return [path]


class ObsWriter:
    """Writes the observations of N envs, given as a sequence, into one row block per key."""

    def __init__(self, spec: EnvSpec, space: spaces.Space[Any]) -> None:
        """``space``: observation space of one env."""
        self._leaves = list(zip((key for key, _ in spec.obs), leaf_paths(space), strict=True))
        self._specs, self._agents = dict(spec.obs), spec.agents

    def write(self, observations: Sequence[Any], rows: Rows) -> None:
        """Copy ``observations`` into ``rows`` {key: [N, ...]}; raises BadObservation if one does not fit."""
        try:
            for key, path in self._leaves:
                leaf = [reduce(getitem, path, obs) for obs in observations] if path else observations
                row = rows[key]
                if row.ndim == 1:
                    np.copyto(row, leaf, casting="same_kind")
                else:
                    np.concatenate(leaf, out=row.reshape(-1, *row.shape[2:]), casting="same_kind")
        except (ValueError, TypeError, LookupError):
            for index, obs in enumerate(observations):
                self.check(obs, f"{self.named(index)} of the split")
            raise

    def named(self, row: int) -> str:
        """The name of ``row`` in error messages: the env, and the agent if there are several."""
        if not self._agents:
            return f"env {row}"
        env, place = divmod(row, len(self._agents))
        return f"env {env}, agent {self._agents[place]!r}"

    def check_all(self, observations: Sequence[Any], size: int, where: str) -> None:
        """Raise BadObservation unless ``observations`` of ``size`` envs match the space's shapes and dtypes."""
        for env, obs in enumerate(observations):
            self.check(obs, f"{where}, {self.named(env)}")

    def check(self, obs: Any, where: str, size: int | None = None) -> None:
        """Raise BadObservation unless ``obs``, or a batch of ``size``, has the space's shapes and castable dtypes."""
        for key, path in self._leaves:
            if misfit := self._misfit(obs, key, path, size):
                raise BadObservation(f"{where}: observation {key!r} {misfit}")

    def flaws(self, observations: Sequence[Any], size: int) -> dict[int, Flaw]:
        """Find envs with an observation of wrong shape or dtype, or with NaN or infinity. Slow."""
        found: dict[int, Flaw] = {}
        for env, obs in enumerate(observations):
            for key, path in self._leaves:
                text = self._misfit(obs, key, path)
                if not text and not is_finite(reduce(getitem, path, obs), self._specs[key].dtype):
                    text = NOT_FINITE
                if text:
                    found.setdefault(env, Flaw(key, text))
        return found

    def _misfit(self, observations: Any, key: str, path: tuple[Any, ...], size: int | None = None) -> str:
        """How a leaf of one env's observation, or of a batch of ``size``, differs from the space; '' if it matches."""
        maker = "env" if size is None else "vector env"
        try:
            leaf = np.asarray(reduce(getitem, path, observations))
        except (LookupError, TypeError, ValueError) as error:
            return (
                f"is missing or no array: the {maker} gave a {type(observations).__name__} "
                f"({type(error).__name__}: {error}); correct the {maker} or its observation_space"
            )
        spec = self._specs[key]
        shape = spec.shape if size is None else (size, *spec.shape)
        if leaf.shape == shape and np.can_cast(leaf.dtype, spec.dtype, "same_kind"):
            return ""
        promise = (
            "the env's observation_space promises"
            if size is None
            else f"{size} envs and the vector env's single_observation_space promise"
        )
        return (
            f"has shape {leaf.shape} and dtype {leaf.dtype}, but {promise} {shape} and {spec.dtype}; correct the "
            f"{maker} or its space"
        )


class BlockWriter(ObsWriter):
    """Writes the observations of all N envs of a vector env, given as one batch in the env's structure."""

    def write(self, observations: Any, rows: Rows) -> None:
        """See ObsWriter."""
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
        """See ObsWriter."""
        self.check(observations, where, size)

    def flaws(self, observations: Any, size: int) -> dict[int, Flaw]:
        """See ObsWriter. A wrong shape or dtype is reported for all envs."""
        found: dict[int, Flaw] = {}
        for key, path in self._leaves:
            if misfit := self._misfit(observations, key, path, size):
                return dict.fromkeys(range(size), Flaw(key, misfit))
            leaf, dtype = reduce(getitem, path, observations), self._specs[key].dtype
            for env in range(size):
                if not is_finite(leaf[env], dtype):
                    found.setdefault(env, Flaw(key, NOT_FINITE))
        return found


def is_finite(leaf: Any, dtype: str) -> Any:
    """True if all of ``leaf`` is finite after a cast to ``dtype``, or if ``dtype`` is not a float type."""
    if np.dtype(dtype).kind != "f":
        return True
    with np.errstate(over="ignore"):  # values too large for the dtype become infinite
        return bool(np.isfinite(np.asarray(leaf).astype(dtype)).all())


def block_reader(space: spaces.Space[Any], prefix: str = "") -> Callable[[Rows], Any]:
    """Return a function that converts action rows {key: [N, ...]} to the batch of N actions for a vector env.

    ``space``: action space of one env. Box actions are clipped to their bounds; Discrete actions are shifted by their
    start. The env may keep the returned batch.
    """
    where = prefix or ACTION_KEY
    if isinstance(space, spaces.Discrete):
        return lambda rows: (rows[where] + space.start).astype(space.dtype, copy=False)
    if isinstance(space, spaces.Box):
        low, high, shape, dtype = space.low.ravel(), space.high.ravel(), space.shape, space.dtype
        return lambda rows: np.clip(rows[where], low, high).astype(dtype, copy=False).reshape(-1, *shape)
    if isinstance(space, spaces.MultiDiscrete):
        keys = [f"{where}/{index}" for index in range(space.nvec.size)]
        start, shape, dtype = space.start.ravel(), space.nvec.shape, space.dtype
        return lambda rows: (
            (np.stack([rows[key] for key in keys], axis=1) + start).astype(dtype, copy=False).reshape(-1, *shape)
        )
    children = [(name, block_reader(child, key)) for name, key, child in _children(space, prefix)]
    if isinstance(space, spaces.Dict):
        return lambda rows: {name: read(rows) for name, read in children}
    return lambda rows: tuple(read(rows) for _, read in children)


def action_reader(space: spaces.Space[Any], prefix: str = "") -> Callable[[Rows], list[Any]]:
    """Return a function that converts action rows {key: [N, ...]} to a list of N env actions, as ``block_reader``."""
    where = prefix or ACTION_KEY
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return (lambda rows: (rows[where] + start).tolist()) if start else (lambda rows: rows[where].tolist())
    if isinstance(space, spaces.Box | spaces.MultiDiscrete):
        read_block = block_reader(space, prefix)
        return lambda rows: list(read_block(rows))
    children = [(name, action_reader(child, key)) for name, key, child in _children(space, prefix)]
    names, readers = [name for name, _ in children], [read for _, read in children]
    if isinstance(space, spaces.Dict):
        return lambda rows: [
            dict(zip(names, row, strict=True)) for row in zip(*(read(rows) for read in readers), strict=True)
        ]
    return lambda rows: list(zip(*(read(rows) for read in readers), strict=True))


def _children(space: spaces.Space[Any], prefix: str) -> list[tuple[Any, str, spaces.Space[Any]]]:
    """(name, key, space) of each child of a Dict or Tuple."""
    base = f"{prefix}/" if prefix else ""
    if isinstance(space, spaces.Dict):
        return [(name, f"{base}{name}", child) for name, child in space.spaces.items()]
    assert isinstance(space, spaces.Tuple), f"EnvSpec does not allow {space!r}"
    return [(index, f"{base}{index}", child) for index, child in enumerate(space.spaces)]
