"""A bandit that can be rendered, with a render mode, a frameskip and statistics of its episodes.

An episode has ``length`` contexts, each shown for ``hold`` frames. A frame with the action of the context's number
pays 1 / hold, so that an episode of right choices returns ``length``, however many frames a step has.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

CONTEXTS = 4

Obs = npt.NDArray[np.float32]


class Drawn(gymnasium.Env[Obs, np.int64]):
    """Pictures are [48, 64, 3], all of the brightness 10 x frame; with ``grows``, each is a row higher."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(
        self,
        render_mode: str | None = None,
        env_frameskip: int = 1,
        length: int = 5,
        hold: int = 1,
        grows: bool = False,
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (CONTEXTS,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(CONTEXTS)
        self._skip, self._hold, self._frames, self._grows = env_frameskip, hold, length * hold, grows
        self._contexts: list[int] = []
        self._frame = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._contexts = self.np_random.integers(CONTEXTS, size=self._frames // self._hold + 1).tolist()
        self._frame = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        for _ in range(self._skip):
            reward += (int(action) == self._context) / self._hold
            self._frame += 1
        over = self._frame >= self._frames
        info = {"true_objective": 0.5, "episode_extra_stats": {"frames": self._frame, "odd": object()}} if over else {}
        return self._obs(), reward, over, False, info

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return None
        height = 48 + (self._frame if self._grows else 0)
        return np.full((height, 64, 3), 10 * self._frame, np.uint8)

    @property
    def _context(self) -> int:
        return self._contexts[self._frame // self._hold]

    def _obs(self) -> Obs:
        obs = np.zeros(CONTEXTS, np.float32)
        obs[self._context] = 1.0
        return obs


class BadPainter(Drawn):
    """Its render() raises."""

    def render(self) -> Any:
        raise RuntimeError("out of paint")


class Interrupter(Drawn):
    """Sends this process SIGINT in the 13th picture."""

    pictures = 0

    def render(self) -> Any:
        self.pictures += 1
        if self.pictures == 13:
            os.kill(os.getpid(), signal.SIGINT)
        return super().render()


class Stacked(Drawn):
    """Says that its observations are made of several frames."""

    metadata = {**Drawn.metadata, "observation_spans_frames": True}  # noqa: RUF012 - the attribute of gymnasium.Env
