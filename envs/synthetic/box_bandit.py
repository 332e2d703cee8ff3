"""A bandit whose action is a vector of reals: whether a trainer reaches every part of a Box is read off its return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class BoxBandit(gymnasium.Env[Floats, npt.NDArray[Any]]):
    """One step per episode: reward 1 at ``target``, less by the mean squared distance in units of ``scale``.

    low, high, target, scale: one number per dimension; None is an infinite bound. dtype: of the action. The reward is
    at least -1, and the observation is constant.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(
        self,
        low: Sequence[float | None],
        high: Sequence[float | None],
        target: Sequence[float],
        scale: Sequence[float],
        dtype: str = "float32",
    ) -> None:
        lows = np.array([-np.inf if bound is None else bound for bound in low], dtype)
        highs = np.array([np.inf if bound is None else bound for bound in high], dtype)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(lows, highs, dtype=np.dtype(dtype).type)
        self._target, self._scale = np.array(target, np.float64), np.array(scale, np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: npt.NDArray[Any]) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """End the episode; raises ValueError for an action outside the space."""
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        distance = np.square((action.astype(np.float64) - self._target) / self._scale).mean()
        return np.ones(1, np.float32), max(-1.0, 1.0 - float(distance)), True, False, {}
