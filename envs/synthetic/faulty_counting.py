"""A Counting env with faults at known places.

A fault is a pure function of (identity, episode, step), so that a checker knows where it was due.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from .counting import Counting, Obs, Position, mix

Fault = Literal["raise", "nan reward", "inf obs", "short obs"]
FAULTS: tuple[Fault, ...] = ("raise", "nan reward", "inf obs", "short obs")


def step_fault(position: Position, every: int, of: tuple[Fault, ...] = FAULTS) -> Fault | None:
    """The fault of the step from ``position``; one step in ``every`` has one, each kind of ``of`` as often."""
    word = mix(*position, 4)
    return of[word // every % len(of)] if word % every == 0 else None


def reset_raises(identity: int, episode: int, every: int) -> bool:
    """Whether the reset that begins ``episode`` raises; the first one of an env never does."""
    return episode > 0 and mix(identity, episode, 5) % every == 0


class FaultyCounting(Counting):
    """Counts, and fails at one step in ``every``, and at one reset in ``every``. The other arguments are Counting's."""

    def __init__(self, every: int = 50, faults: tuple[Fault, ...] = FAULTS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._every, self._faults = every, tuple(faults)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """As Counting, or RuntimeError."""
        result = super().reset(seed=seed)
        position = self._position()
        if "raise" in self._faults and reset_raises(position.identity, position.episode, self._every):
            raise RuntimeError(f"no episode {position.episode}")
        return result

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """As Counting, or with a fault."""
        fault = step_fault(self._position(), self._every, self._faults)
        obs, reward, terminated, truncated, info = super().step(action)
        if fault == "raise":
            raise RuntimeError(f"no step from {self._position()}")
        if fault == "nan reward":
            reward = float("nan")
        elif fault == "inf obs":
            obs[3] = np.inf
        elif fault == "short obs":
            obs = obs[1:]
        return obs, reward, terminated, truncated, info
