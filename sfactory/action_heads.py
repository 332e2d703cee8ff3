"""The heads that choose actions, and how they follow from the spaces of actions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium.spaces as spaces
import numpy as np

from sfactory.errors import EnvError
from sfactory.tensor_spec import TensorSpec

_HUGE = 1e30  # bounds beyond stand for infinity
_MOST_CHOICES = 4096  # of one dimension of a Box of integers


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
    """A vector of ``size`` reals in the policy's unit, clipped to [low, high]: the env gets center + scale * action.

    low, high: bounds in the policy's unit: those of the env with center 0 and scale 1, or -1 and 1. center, scale:
    one number per dimension. squashed: dimensions with finite bounds are not clipped; the env gets the tanh of their
    actions. The env's action has ``shape`` and ``dtype``.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    squashed: bool = False

    @property
    def size(self) -> int:
        """Number of reals."""
        return math.prod(self.shape)

    @property
    def tensor(self) -> TensorSpec:
        """How chosen actions are stored: float32 vectors, neither clipped nor squashed."""
        return TensorSpec((self.size,), "float32")

    @property
    def bounded(self) -> tuple[bool, ...]:
        """Which dimensions have two finite bounds."""
        return tuple(_is_range(low, high) for low, high in zip(self.low, self.high, strict=True))

    def normalized(self, squashed: bool) -> BoxHead:
        """The same head with dimensions of two finite bounds in the unit [-1, 1]."""
        ranges = tuple(zip(self.low, self.high, self.bounded, strict=True))
        return dataclasses.replace(
            self,
            low=tuple(-1.0 if bounded else low for low, _, bounded in ranges),
            high=tuple(1.0 if bounded else high for _, high, bounded in ranges),
            center=tuple(0.5 * low + 0.5 * high if bounded else 0.0 for low, high, bounded in ranges),
            scale=tuple(0.5 * high - 0.5 * low if bounded else 1.0 for low, high, bounded in ranges),
            squashed=squashed,
        )


def _is_range(low: float, high: float) -> bool:
    """Whether both bounds are meant: some envs write infinity as the largest number of a dtype."""
    return -_HUGE < low < high < _HUGE


ActionHead = DiscreteHead | BoxHead


def heads_of(where: str, space: spaces.Space[Any]) -> Iterator[ActionHead]:
    """The heads that choose the actions of a leaf."""
    if isinstance(space, spaces.Discrete):
        yield DiscreteHead(where, int(space.n), int(space.start))
    elif isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f" and space.low.size:
        low, high = space.low.ravel().astype(float), space.high.ravel().astype(float)
        shape = tuple(map(int, space.shape))
        yield BoxHead(where, shape, np.dtype(space.dtype).name, tuple(low.tolist()), tuple(high.tolist()))
    else:
        for index, (n, start) in enumerate(zip(*choices_of_action(space, where), strict=True)):
            yield DiscreteHead(f"{where}/{index}", n, start)


def choices_of_action(space: spaces.Space[Any], where: str) -> tuple[list[int], list[int]]:
    """Number of values and first value of each element of an array of choices; raises EnvError for other spaces."""
    if isinstance(space, spaces.MultiDiscrete):
        return np.ravel(space.nvec).tolist(), np.ravel(space.start).tolist()
    if isinstance(space, spaces.MultiBinary):
        size = math.prod(space.shape)
        return [2] * size, [0] * size
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "iu" and space.low.size:
        low = [int(bound) for bound in space.low.ravel()]
        sizes = [int(high) - first + 1 for high, first in zip(space.high.ravel(), low, strict=True)]
        if max(sizes) <= _MOST_CHOICES:
            return sizes, low
    raise EnvError(
        f"action space {where!r} is {space!r}; supported are Discrete, MultiDiscrete, MultiBinary, Box of floats, Box "
        f"of integers with at most {_MOST_CHOICES} values per dimension, and Dict or Tuple of these"
    )
