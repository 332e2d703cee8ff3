"""An env with a step that costs almost nothing, so that only the trainer is measured.

It ignores actions, returns the same observation array every time (a new one would cost more than the step), and ends
episodes after a number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = npt.NDArray[Any]


class CostFree(gymnasium.Env[Obs, np.int64]):
    """Observations of ``obs_shape`` and ``obs_dtype``, ``num_actions`` choices, episodes of ``length`` steps."""

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(
        self, obs_shape: Sequence[int] = (4,), obs_dtype: str = "float32", num_actions: int = 2, length: int = 1000
    ) -> None:
        if length < 1:
            raise ValueError(f"length is {length}; an episode has at least 1 step")
        dtype = np.dtype(obs_dtype)
        high = 1.0 if dtype.kind == "f" else np.iinfo(dtype).max
        self.observation_space = gymnasium.spaces.Box(0, high, tuple(obs_shape), dtype.type)
        self.action_space = gymnasium.spaces.Discrete(num_actions)
        self._obs: Obs = np.zeros(tuple(obs_shape), dtype)
        self._info: dict[str, Any] = {}
        self._length = length
        self._left = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._left = self._length
        return self._obs, self._info

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Count one step; truncated after ``length``."""
        self._left -= 1
        return self._obs, 1.0, False, self._left <= 0, self._info
