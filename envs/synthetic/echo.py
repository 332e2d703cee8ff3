"""A bandit whose right action is its observation, in a Dict or a Tuple of a choice and a number."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import gymnasium.spaces as spaces
import numpy as np

CHOICES = 4


class Echo(gymnasium.Env[Any, Any]):
    """One step per episode: half a point for the same choice, and half a point less the distance of the numbers.

    Observations and actions have the same space: a Discrete(CHOICES) and a Box of one number in [-1, 1], as ``form``.
    The best return is 1; that of one choice and the number 0 is 0.375.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, form: Literal["dict", "tuple"] = "dict") -> None:
        parts = spaces.Discrete(CHOICES), spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space: spaces.Space[Any] = (
            spaces.Tuple(parts) if form == "tuple" else spaces.Dict(choice=parts[0], number=parts[1])
        )
        self.action_space = self.observation_space
        self._form, self._shown = form, (0, np.zeros(1, np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._shown = int(self.np_random.integers(CHOICES)), self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """End the episode."""
        choice, number = action if self._form == "tuple" else (action["choice"], action["number"])
        reward = 0.5 * (int(choice) == self._shown[0]) + 0.5 * max(0.0, 1.0 - abs(float((number - self._shown[1])[0])))
        return self._obs(), reward, True, False, {}

    def _obs(self) -> Any:
        choice, number = self._shown[0], self._shown[1].copy()
        return (choice, number) if self._form == "tuple" else {"choice": choice, "number": number}
