"""Writes spaces of Gymnasium as tuples, numbers and text, which checkpoints and JSON can hold, and reads them back."""

from __future__ import annotations

import math
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt

Space = spaces.Space[Any]
_MOST_ELEMENTS = 10**8  # a few bytes of a file may describe any size


def plain_space(space: Space) -> tuple[Any, ...]:
    """The kind of a space and what it is made of. Of a kind that no network reads, the kind alone."""
    if isinstance(space, spaces.Dict):
        return ("Dict", *((name, plain_space(child)) for name, child in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return ("Tuple", *map(plain_space, space.spaces))
    if isinstance(space, spaces.Discrete):
        return "Discrete", int(space.n), int(space.start), np.dtype(space.dtype).name
    if isinstance(space, spaces.MultiBinary):
        return "MultiBinary", *space.shape
    dtype = "" if space.dtype is None else np.dtype(space.dtype).name
    if isinstance(space, spaces.MultiDiscrete):
        return "MultiDiscrete", _numbers(space.nvec), _numbers(space.start), tuple(map(int, space.shape)), dtype
    if isinstance(space, spaces.Box):
        return "Box", _numbers(space.low), _numbers(space.high), tuple(map(int, space.shape)), dtype
    return (type(space).__name__,)


def space_of_plain(plain: Any) -> Space:
    """The space of which ``plain`` is the plain form, also after JSON. One that no network reads is a bare Space.

    Raises ValueError if it is of none.
    """
    try:
        kind, *given = plain
        if kind == "Dict":
            return spaces.Dict([(name, space_of_plain(child)) for name, child in given])
        if kind == "Tuple":
            return spaces.Tuple([space_of_plain(child) for child in given])
        if kind == "Discrete":
            n, start, dtype = given
            return spaces.Discrete(n, start=start, **({} if dtype == "int64" else {"dtype": np.dtype(dtype).type}))
        if kind == "MultiBinary":
            return spaces.MultiBinary(given[0] if len(given) == 1 else tuple(given))
        if kind not in ("MultiDiscrete", "Box"):
            return spaces.Space()
        first, second, shape, dtype = given
        low, high = (_array(numbers, shape, dtype) for numbers in (first, second))
        if kind == "MultiDiscrete":
            return spaces.MultiDiscrete(low, np.dtype(dtype).type, start=high)
        return spaces.Box(low, high, tuple(shape), np.dtype(dtype).type)
    except (AssertionError, AttributeError, KeyError, MemoryError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"it is not a space: {error}") from error


def _numbers(array: npt.NDArray[Any]) -> tuple[Any, ...]:
    """The elements of an array; of equal ones the first alone, as an image has the same bounds everywhere."""
    flat = array.ravel()
    return tuple((flat[:1] if flat.size and (flat == flat[0]).all() else flat).tolist())


def _array(numbers: Any, shape: Any, dtype: str) -> npt.NDArray[Any]:
    flat = np.array(numbers, dtype)
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"it is not a space: {shape} has too many elements")
    return np.full(shape, flat[0], dtype) if flat.size == 1 else flat.reshape(shape)
