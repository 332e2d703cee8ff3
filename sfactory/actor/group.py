"""Room: what a split steps: some envs one by one, or one vector env. In: actions. Out: what happened to each env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sfactory.actor.episodes import ExtraTally

BeforeEach = Callable[[], None]


class Group(Protocol):
    """N envs that are stepped together. What the last step did is told as lists of the envs it was done to.

    observations: N current observations, in the form that the split's writer takes
    rewards: N rewards of the last step
    terminated, truncated: envs whose episode ended with the last step, never both
    resumed: envs that were reset instead of stepped in the last step
    lost: envs whose last step cannot be learned from, since what its value depends on was not given
    first: envs whose current observation is the first of an episode
    extras: extra statistics that episodes gave at their ends, not yet sent
    """

    observations: Any
    rewards: Any
    terminated: list[int]
    truncated: list[int]
    resumed: list[int]
    lost: list[int]
    extras: ExtraTally

    @property
    def size(self) -> int:
        """N."""

    @property
    def first(self) -> list[int]:
        """See above."""

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
        """Reset every env for the first time; ``before_each`` is called before all that may take long."""

    def step(self, actions: Any) -> None:
        """Step every env with ``actions``, in the form that the split's action reader gives them."""

    def reset_truncated(self) -> list[int]:
        """Reset those that the last step truncated, at once and without a truncation row; returns those it could."""

    def close(self, name: str) -> None:
        """Close every env of what ``name`` calls this group. What that raises is only logged."""


def reward_row(rewards: Any) -> npt.NDArray[np.float64]:
    """[N] float64 of N rewards, as a list or an array."""
    return np.array(rewards, np.float64)
