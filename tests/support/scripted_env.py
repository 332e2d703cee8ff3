"""An env that follows a script of episodes and records its actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = npt.NDArray[np.float32]
Ending = Literal["terminated", "truncated", "both"]
Episode = tuple[int, Ending]


def obs_at(episode: int, step: int) -> float:
    """The number that the env shows after ``step`` steps of ``episode``, both from 0."""
    return 100.0 * episode + step


class ScriptedEnv(gymnasium.Env[Obs, int]):
    """Plays ``script``, then one endless episode. The reward of a step is the number shown before it, plus 0.5.

    taken: the actions it was given. seeds: the seeds of its resets. closed: whether close() was called.
    """

    def __init__(self, script: Sequence[Episode]) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space: gymnasium.spaces.Space[Any] = gymnasium.spaces.Discrete(10)
        self._script = list(script)
        self._episode, self._step, self._running = -1, 0, False
        self.taken: list[int] = []
        self.seeds: list[int | None] = []
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        self.seeds.append(seed)
        self._episode, self._step, self._running = self._episode + 1, 0, True
        return self._obs(), {}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        assert self._running, "stepped after the end of an episode"
        self.taken.append(action)
        reward = obs_at(self._episode, self._step) + 0.5
        self._step += 1
        length, ending = self._script[self._episode] if self._episode < len(self._script) else (2**31, "both")
        over = self._step == length
        self._running = not over
        return self._obs(), reward, over and ending != "truncated", over and ending != "terminated", {}

    def close(self) -> None:
        self.closed = True

    def _obs(self) -> Obs:
        return np.array([obs_at(self._episode, self._step)], np.float32)
