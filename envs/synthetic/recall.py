"""A task that only a memory solves: the right action of all steps is shown once, or has to be found by trying.

The best return is 1, that of a random policy 1 / ``choices``; without a memory none is better on average once the cue
is gone.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = npt.NDArray[np.float32]


class Recall(gymnasium.Env[Obs, np.int64]):
    """Each step with the action of the episode's cue earns 1 / ``length``; an episode has ``length`` steps.

    shown: the first observation is the cue, one-hot; all others, and the first, too, without ``shown``, are noise of a
    tenth of its size. Without ``shown`` only rewards tell it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, length: int = 64, choices: int = 4, shown: bool = True) -> None:
        self.observation_space = gymnasium.spaces.Box(-0.1, 1.1, (choices,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(choices)
        self._length, self._choices, self._shown = length, choices, shown
        self._cue = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode with a fresh cue."""
        super().reset(seed=seed)
        self._step, self._cue = 0, int(self.np_random.integers(self._choices))
        obs = self._noise()
        obs[self._cue] += self._shown
        return obs, {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Earn something if ``action`` is the cue's."""
        self._step += 1
        reward = 1.0 / self._length if int(action) == self._cue else 0.0
        return self._noise(), reward, self._step >= self._length, False, {}

    def _noise(self) -> Obs:
        return self.np_random.uniform(-0.1, 0.1, self._choices).astype(np.float32)
