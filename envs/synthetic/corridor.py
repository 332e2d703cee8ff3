"""A corridor whose only reward is at its end, too far away for random actions: a task for exploration."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = npt.NDArray[np.float32]


class Corridor(gymnasium.Env[Obs, np.int64]):
    """``length`` cells, of which the agent sees the number of its own as one-hot; it begins at the first.

    One action goes ahead and one back; which is which differs from cell to cell. Reward 1 and termination at the last
    cell, truncation after twice as many steps as it is away. Random actions reach it once in more than 10^6 episodes
    where the corridor has 60 cells.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, length: int = 60) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._ahead = np.random.default_rng(0).integers(2, size=length)
        self._cells = np.eye(length, dtype=np.float32)
        self._cell = self._steps = self._farthest = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin at the first cell."""
        super().reset(seed=seed)
        self._cell = self._steps = self._farthest = 0
        return self._cells[0], {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Go one cell; the last ``info`` of an episode has the farthest cell as an extra statistic."""
        self._cell = max(0, self._cell + (1 if action == self._ahead[self._cell] else -1))
        self._farthest = max(self._farthest, self._cell)
        self._steps += 1
        end = len(self._cells) - 1
        terminated, truncated = self._cell == end, self._steps >= 2 * end
        info = {"episode_extra_stats": {"farthest": self._farthest}} if terminated or truncated else {}
        return self._cells[self._cell], float(terminated), terminated, truncated and not terminated, info
