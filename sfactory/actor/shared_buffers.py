"""Finds envs that hand out the same memory as observations, and copies what they return.

A split keeps what its envs return until all of them have stepped. If they write into one buffer, of their class or
module for example, every row would show the observation of the env that stepped last.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds


def envs_that_share(observations: Sequence[Any], rows_per_env: int) -> tuple[int, int] | None:
    """Two envs with arrays, or lists, that share memory in ``observations`` of all rows; None if there are none.

    Rows of one env may share it: its agents may all see the same. Memory is compared by its bounds, so that interleaved
    arrays count as shared.
    """
    spans = sorted(
        (*span, row // rows_per_env)
        for row, obs in enumerate(observations)
        for memory in _memories(obs)
        if (span := _span(memory))[1] > span[0]
    )
    for index, (_, end, env) in enumerate(spans):
        for begin, _, other in spans[index + 1 :]:
            if begin >= end:
                break
            if other != env:
                return min(env, other), max(env, other)
    return None


def _memories(obs: Any) -> Iterator[Any]:
    """Arrays and lists of an observation."""
    if isinstance(obs, np.ndarray | list):
        yield obs
    elif isinstance(obs, Mapping):
        for part in obs.values():
            yield from _memories(part)
    elif isinstance(obs, tuple):
        for part in obs:
            yield from _memories(part)


def _span(memory: Any) -> tuple[int, int]:
    """Addresses of the first byte and of the one after the last; of a list its identity."""
    return byte_bounds(memory) if isinstance(memory, np.ndarray) else (id(memory), id(memory) + 1)


class CopiedObservations:
    """An env, of one agent or of many, that returns copies of its observations. env: the env itself."""

    def __init__(self, env: Any, resets_with_info: bool) -> None:
        """resets_with_info: ``reset`` returns (observation, info) and not observations alone."""
        self.env, self._resets_with_info = env, resets_with_info
        self._shown: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **how: Any) -> Any:
        """As the env's."""
        returned = self.env.reset(**how)
        self._shown = returned[0] if self._resets_with_info else returned
        copied = copy.deepcopy(self._shown)
        return (copied, *returned[1:]) if self._resets_with_info else copied

    def step(self, action: Any) -> Any:
        """As the env's."""
        self._shown, *others = self.env.step(action)
        return copy.deepcopy(self._shown), *others

    def shown(self) -> list[Any]:
        """The observations of all rows as the env has returned them last."""
        return [self._shown] if self._resets_with_info else list(self._shown)
