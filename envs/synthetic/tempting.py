"""An env with a misleading reward that reward shaping can correct.

In every step one action is right and another one is tempting. The reward is ``scheme["right"]`` for the first and
``scheme["tempting"]`` for the second; the true objective counts right actions. By default the tempting action
has twice the reward, so a policy that learns well has a low true objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .bandit import Bandit, Obs


class Tempting(Bandit):
    """A Bandit: right is the context's number, tempting the next one."""

    def __init__(self, num_contexts: int = 4, length: int = 8) -> None:
        super().__init__(num_contexts, length)
        self._right = 0
        self._scheme: Mapping[str, Any] = self.get_default_reward_shaping()

    def get_default_reward_shaping(self) -> Mapping[str, Any]:
        """The rewards of the two actions."""
        return {"pays": {"right": 0.5, "tempting": 1.0}}

    def set_reward_shaping(self, reward_shaping: Mapping[str, Any], agent_idx: int) -> None:
        """Use this scheme from now on."""
        self._scheme = reward_shaping

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode with a fresh context."""
        self._right = 0
        return super().reset(seed=seed)

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Reward the action; terminates after ``length`` steps, with the number of right ones in ``info``."""
        pays, chosen = self._scheme["pays"], int(action)
        right, tempted = chosen == self._context, chosen == (self._context + 1) % self._num_contexts
        reward = float(pays["right"]) * right + float(pays["tempting"]) * tempted
        self._right += right
        obs, _, over, truncated, _ = super().step(action)
        return obs, reward, over, truncated, {"true_objective": float(self._right)} if over else {}
