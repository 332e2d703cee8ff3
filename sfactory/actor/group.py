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
    broken: envs that failed in the last step, or gave what is no data: the step is lost, and so is its episode, which
        counts nowhere; they were made good, and are at the start of another. None of the lists above holds them
    first: envs whose current observation is the first of an episode
    extras: extra statistics that episodes gave at their ends, not yet sent

    Of envs with many agents each agent is a row, and stands for an env here (NOTE [Rows of agents]). Agents may take no
    part in a step, which the rest is about; it is empty elsewhere. See NOTE [Agent life].

    idle: rows that had no part in the last step, and are in none of the lists above (those of an env that was reset are
        in ``resumed``)
    paused: rows whose agent fell asleep with the last step, in which its episode did not end
    absent: rows that nobody need act for in the next step: they show zeros
    """

    observations: Any
    rewards: Any
    terminated: list[int]
    truncated: list[int]
    resumed: list[int]
    lost: list[int]
    broken: list[int]
    idle: list[int]
    paused: list[int]
    absent: list[int]
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
        """Step every env with ``actions``, in the form that the split's action reader gives them.

        Raises EnvFaults if one failed that may not be made anew any more, StopOrdered if a stop came before it was.
        """

    def lose(self, envs: Sequence[int]) -> None:
        """What the last step of ``envs`` gave is no data: they are ``broken``, and reset unless they were already."""

    def show_anew(self, envs: Sequence[int]) -> Sequence[int]:
        """``envs`` show what is no data at the start of an episode: reset them again; returns all that were."""

    def reset_truncated(self) -> list[int]:
        """Reset those that the last step truncated, at once and without a truncation row; returns those it could."""

    def close(self, name: str) -> None:
        """Close every env of what ``name`` calls this group. What that raises is only logged."""


def reward_row(rewards: Any) -> npt.NDArray[np.float64]:
    """[N] float64 of N rewards, as a list or an array; NaN for one that is no number."""
    try:
        row = np.array(rewards, np.float64)
    except (TypeError, ValueError):
        row = np.empty(0)
    return row if row.shape == (len(rewards),) else np.array([_number(reward) for reward in rewards], np.float64)


def _number(reward: Any) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError):
        return float("nan")
