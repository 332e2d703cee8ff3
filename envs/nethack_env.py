"""NetHack with seeds: nle ignores those that ``reset`` gets."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = dict[str, npt.NDArray[Any]]

_SEEDS = 2**63


class NetHackEnv(gymnasium.Wrapper[Obs, Any, Obs, Any]):
    """A task of nle in which a seed decides on all games that follow. ``options`` of ``reset`` are left out."""

    def __init__(self, env: gymnasium.Env[Obs, Any]) -> None:
        super().__init__(env)
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin a game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        game: Any = self.env.unwrapped
        core, display = map(int, self._random.integers(_SEEDS, size=2))
        # reseed: NetHack would draw new seeds from the machine now and then.
        game.seed(core, display, reseed=False)
        return self.env.reset()
