"""Describes observations and actions of an environment as flat, picklable facts.

``EnvSpec`` is made of gymnasium spaces; trajectory memory, models and the decoding of actions are derived from it.
Nested spaces become flat dicts keyed by path ("image", "goal/position"); a single space has the key "obs" or "action".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium.spaces as spaces
import numpy as np

from sfactory.errors import EnvError

OBS_KEY = "obs"
ACTION_KEY = "action"


@dataclass(frozen=True)
class TensorSpec:
    """Shape (without batch dimensions) and numpy dtype name of one array."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of one element of a batch."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class DiscreteHead:
    """One categorical choice in [0, n). The env gets ``start`` + the stored index."""

    key: str
    n: int
    start: int = 0

    @property
    def tensor(self) -> TensorSpec:
        """How chosen actions are stored: int64 scalars."""
        return TensorSpec((), "int64")


@dataclass(frozen=True)
class BoxHead:
    """A vector of ``size`` reals; the env gets it clipped to [low, high] and in ``shape`` and ``dtype``."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of reals."""
        return math.prod(self.shape)

    @property
    def tensor(self) -> TensorSpec:
        """How chosen actions are stored: float32 vectors, unclipped."""
        return TensorSpec((self.size,), "float32")


ActionHead = DiscreteHead | BoxHead


@dataclass(frozen=True)
class EnvSpec:
    """What one agent sees and does. ``obs`` and ``actions`` are ordered; order is part of the contract.

    agents: names of the env's agents, all of whom see and do the same; none where an env is its own agent.
    """

    obs: tuple[tuple[str, TensorSpec], ...]
    actions: tuple[ActionHead, ...]
    agents: tuple[str, ...] = ()

    @staticmethod
    def of_spaces(
        observation_space: spaces.Space[Any], action_space: spaces.Space[Any], agents: tuple[str, ...] = ()
    ) -> EnvSpec:
        """Flatten gymnasium spaces; raises EnvError naming the path of a space that is not supported."""
        obs = ((path or OBS_KEY, space) for path, space in _leaves(observation_space))
        actions = ((path or ACTION_KEY, space) for path, space in _leaves(action_space))
        return EnvSpec(
            obs=tuple((path, _tensor_of(path, space)) for path, space in obs),
            actions=tuple(head for path, space in actions for head in _heads_of(path, space)),
            agents=agents,
        )

    @property
    def num_agents(self) -> int:
        """A: agents of one env, each of which is a row."""
        return len(self.agents) or 1


def _join(prefix: str, name: object) -> str:
    return f"{prefix}/{name}" if prefix else str(name)


def _leaves(space: spaces.Space[Any], prefix: str = "") -> Iterator[tuple[str, spaces.Space[Any]]]:
    """The spaces in ``space`` that are no containers, with their paths; a space that is not nested has the path ""."""
    children: Iterable[tuple[object, spaces.Space[Any]]]
    if isinstance(space, spaces.Dict):
        children = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
    else:
        yield prefix, space
        return
    for name, child in children:
        yield from _leaves(child, _join(prefix, name))


def _tensor_of(where: str, space: spaces.Space[Any]) -> TensorSpec:
    """How observations of a leaf are stored."""
    if not isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete | spaces.Discrete):
        raise EnvError(
            f"observation space {where!r} is a {type(space).__name__}; supported are Box, Discrete, "
            "MultiDiscrete, MultiBinary, and Dict or Tuple of these"
        )
    dtype = np.dtype(space.dtype)
    if dtype.kind not in "fiub":
        raise EnvError(f"observation {where!r} has dtype {dtype}, which is not numeric")
    # float64 observations are stored as float32: no model here computes in double precision.
    return TensorSpec(tuple(space.shape or ()), "float32" if dtype == np.float64 else dtype.name)


def _heads_of(where: str, space: spaces.Space[Any]) -> Iterator[ActionHead]:
    """The heads that choose the actions of a leaf."""
    if isinstance(space, spaces.Discrete):
        yield DiscreteHead(where, int(space.n), int(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        starts = np.asarray(space.start).ravel()
        for index, n in enumerate(np.asarray(space.nvec).ravel()):
            yield DiscreteHead(_join(where, index), int(n), int(starts[index]))
    elif isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        low, high = space.low.ravel().astype(float), space.high.ravel().astype(float)
        yield BoxHead(where, tuple(space.shape), np.dtype(space.dtype).name, tuple(low.tolist()), tuple(high.tolist()))
    else:
        raise EnvError(
            f"action space {where!r} is {space!r}; supported are Discrete, MultiDiscrete, Box of floats, "
            "and Dict or Tuple of these"
        )
