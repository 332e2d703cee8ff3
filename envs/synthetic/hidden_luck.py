"""A bandit whose returns are mostly luck, which only the critic may see: how fast it is learned shows what that gives.

Observations have the groups ``policy``, a one-hot context, and ``critic``, the luck of the episode. The reward is 1 for
the action of the context's number, else 0; with the last step comes the luck, which no action changes.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np

Obs = dict[str, Any]


class HiddenLuck(gymnasium.Env[Obs, np.int64]):
    """``contexts`` contexts and as many actions; an episode has ``length`` steps. spread: standard deviation of luck.

    shows_luck: False leaves out the group ``critic``, as a robot does that has learned in simulation.
    The true objective is the share of right actions.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, contexts: int = 4, length: int = 10, spread: float = 20.0, shows_luck: bool = True) -> None:
        groups: dict[str, spaces.Space[Any]] = {"policy": spaces.Box(0.0, 1.0, (contexts,), np.float32)}
        if shows_luck:
            groups["critic"] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = spaces.Dict(groups)
        self.action_space = spaces.Discrete(contexts)
        self._contexts, self._length, self._spread, self._shows_luck = contexts, length, spread, shows_luck
        self._context = self._step = self._right = 0
        self._luck = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._step = self._right = 0
        self._luck = self._spread * float(self.np_random.standard_normal())
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Reward the action, and draw the next context."""
        right = int(action) == self._context
        self._right += right
        self._step += 1
        over = self._step >= self._length
        info = {"true_objective": self._right / self._length} if over else {}
        return self._draw(), right + over * self._luck, over, False, info

    def _draw(self) -> Obs:
        self._context = int(self.np_random.integers(self._contexts))
        obs: Obs = {"policy": np.eye(self._contexts, dtype=np.float32)[self._context]}
        if self._shows_luck:
            obs["critic"] = np.array([self._luck], np.float32)
        return obs
