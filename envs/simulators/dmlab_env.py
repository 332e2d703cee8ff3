"""A level of DeepMind Lab as a Gymnasium env, and a folder of compiled maps."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepmind_lab
import gymnasium
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

_IMAGE = "RGB_INTERLEAVED"
# What a step of the package takes: look right, look up, strafe right, move forward (each negative for the opposite),
# fire, jump, crouch. The nine actions are those of Espeholt et al. 2018, the fifteen Sample Factory's extended ones.
_FORWARD, _BACKWARD = (0, 0, 0, 1, 0, 0, 0), (0, 0, 0, -1, 0, 0, 0)
_STRAFE = ((0, 0, -1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0))
_FIRE = (0, 0, 0, 0, 1, 0, 0)


def _looks(pixels: int, forward: int) -> tuple[tuple[int, ...], ...]:
    """Left and right."""
    return ((-pixels, 0, 0, forward, 0, 0, 0), (pixels, 0, 0, forward, 0, 0, 0))


_ACTIONS = (_FORWARD, _BACKWARD, *_STRAFE, *_looks(20, 0), *_looks(20, 1), _FIRE)
_EXTENDED = (
    *(_FORWARD, _BACKWARD, *_STRAFE, *_looks(10, 0), *_looks(60, 0)),
    *((0, 10, 0, 0, 0, 0, 0), (0, -10, 0, 0, 0, 0, 0)),
    *(*_looks(10, 1), *_looks(60, 1), _FIRE),
)


class LevelCache:
    """Compiled maps in a folder, as the package asks for them; several processes may share it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()
        self._folder.mkdir(parents=True, exist_ok=True)

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map ``key`` to ``pk3_path``; False if there is none."""
        try:
            shutil.copyfile(self._folder / key, pk3_path)
        except FileNotFoundError:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the map ``key`` that was compiled to ``pk3_path``."""
        handle, part = tempfile.mkstemp(dir=self._folder)
        os.close(handle)
        shutil.copyfile(pk3_path, part)
        os.replace(part, self._folder / key)  # others see it whole, or not at all


class DmLabEnv(gymnasium.Env[Image, np.int64]):
    """A level of DeepMind Lab: an image [height, width, 3] uint8, and 9 or 15 actions.

    An episode ends when the level says so; the package does not say whether by a limit of time, so each end is a
    termination. What is seen last is the image before the end. The instruction of a level (INSTR) is not observed.

    renderer: "software" or "hardware". level_cache: a folder for compiled maps, or None. config: settings of the
    package and of the level. dataset: the folder of the images that some levels hang on their walls.
    """

    def __init__(
        self,
        level: str,
        frameskip: int,
        *,
        width: int = 96,
        height: int = 72,
        renderer: str = "software",
        extended_actions: bool = False,
        level_cache: str | None = None,
        dataset: str = "",
        config: Mapping[str, object] | None = None,
        render_mode: str | None = None,
    ) -> None:
        settings = {**({"datasetPath": dataset} if dataset else {}), **(config or {}), "width": width, "height": height}
        self._lab: Any = deepmind_lab.Lab(
            level,
            [_IMAGE],
            config={name: str(value) for name, value in settings.items()},
            renderer=renderer,
            level_cache=None if level_cache is None else LevelCache(level_cache),
        )
        self._frameskip, self.render_mode = frameskip, render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 60 // frameskip}
        # [9 or 15, 7]
        self._actions = np.array(_EXTENDED if extended_actions else _ACTIONS, np.intc)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, 3), np.uint8)
        self._seen: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        """Begin an episode; its seed follows from the seeds of earlier ones if none is given."""
        super().reset(seed=seed)
        self._lab.reset(seed=int(self.np_random.integers(2**31 - 1)))
        self._seen = self._lab.observations()[_IMAGE]
        return self._seen, {}

    def step(self, action: np.int64) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Take the action for some frames."""
        reward = float(self._lab.step(self._actions[action], num_steps=self._frameskip))
        ended = not self._lab.is_running()
        if not ended:
            self._seen = self._lab.observations()[_IMAGE]
        return self._seen, reward, ended, False, {}

    def render(self) -> Any:
        """What was seen last."""
        return self._seen

    def close(self) -> None:
        """End the game."""
        self._lab.close()
