"""Factories that a run must refuse before it starts, each with a reason that the user can act on."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class _Still(gymnasium.Env[Any, Any]):
    """An environment in which nothing happens."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Any observation."""
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The same again."""
        return self.observation_space.sample(), 0.0, False, False, {}


class FailingReset(_Still):
    """Can be made, but not reset."""

    def __init__(self) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Fails."""
        raise RuntimeError("the level file is missing")


def raising(**_: object) -> gymnasium.Env[Any, Any]:
    """A factory that cannot do its work."""
    raise ValueError("the simulator is not licensed")


def leaving() -> gymnasium.Env[Any, Any]:
    """A factory that ends the process it runs in."""
    raise SystemExit("gone away")


def nothing() -> None:
    """A factory that forgets to return."""


def text_observations() -> gymnasium.Env[Any, Any]:
    """An environment whose observations are words."""
    return _Still(gymnasium.spaces.Text(8), gymnasium.spaces.Discrete(2))


def graph_actions() -> gymnasium.Env[Any, Any]:
    """An environment whose actions are sets of indices."""
    numbers = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))
    return _Still(gymnasium.spaces.Box(-1, 1, (2,), np.float32), numbers)
