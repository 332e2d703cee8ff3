"""An env that a working trainer learns in seconds.

Observations are one-hot contexts; the reward is 1 for the action of the same number, else 0. The best mean return is
``length``, a random policy's is ``length / num_contexts``; a policy that ignores its observation gets no more.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = npt.NDArray[np.float32]


class Bandit(gymnasium.Env[Obs, np.int64]):
    """A contextual bandit: ``num_contexts`` contexts and as many actions; an episode has ``length`` draws."""

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, num_contexts: int = 4, length: int = 1) -> None:
        if num_contexts < 2 or length < 1:
            raise ValueError(f"num_contexts is {num_contexts} and length {length}; at least 2 and 1 are needed")
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (num_contexts,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(num_contexts)
        self._num_contexts = num_contexts
        self._length = length
        self._context = 0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode with a fresh context."""
        super().reset(seed=seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Reward 1 if ``action`` is the number of the context last shown; terminates after ``length`` steps."""
        reward = 1.0 if int(action) == self._context else 0.0
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def _draw(self) -> Obs:
        self._context = int(self.np_random.integers(self._num_contexts))
        obs = np.zeros(self._num_contexts, np.float32)
        obs[self._context] = 1.0
        return obs
