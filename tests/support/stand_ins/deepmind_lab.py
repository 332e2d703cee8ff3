"""A level that pays for moving forward, and ends after some frames. The interface is that of docs/users/python_api.md.

A map is compiled at each reset unless the cache has it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FRAMES = 40
NAMES = ("RGB_INTERLEAVED",)


class Lab:
    """One instance of the game."""

    def __init__(
        self,
        level: str,
        observations: Sequence[str],
        config: Mapping[str, str] | None = None,
        renderer: str = "software",
        level_cache: Any = None,
        temp_folder: str | None = None,
    ) -> None:
        config = config or {}
        assert set(observations) <= set(NAMES)
        assert renderer in ("software", "hardware")
        assert all(isinstance(value, str) for value in config.values())
        self.level, self.config, self._names, self._cache = level, config, observations, level_cache
        self._shape = int(config.get("height", "240")), int(config.get("width", "320")), 3
        self._frame, self._left, self.compiled = 0, 0, 0
        self._random = np.random.default_rng()

    def reset(self, episode: int = -1, seed: int | None = None) -> None:
        assert seed is None or isinstance(seed, int)
        self._random = np.random.default_rng(seed)
        self._frame, self._left = 0, FRAMES
        if self._cache is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "map.pk3")
                if not self._cache.fetch("key", str(path)):
                    path.write_text("a map")
                    self.compiled += 1
                    self._cache.write("key", str(path))
                assert path.read_text() == "a map"

    def is_running(self) -> bool:
        return self._left > 0

    def num_steps(self) -> int:
        return self._frame

    def step(self, action: Any, num_steps: int = 1) -> float:
        assert self.is_running()
        assert (action.dtype, action.shape) == (np.intc, (7,))
        frames = min(num_steps, self._left)
        self._left, self._frame = self._left - frames, self._frame + frames
        return float(action[3]) * frames

    def observations(self) -> dict[str, Any]:
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for call to observations()")
        return {name: self._random.integers(0, 256, self._shape, np.uint8) for name in self._names}

    def close(self) -> None:
        self._left = 0
