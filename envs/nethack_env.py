"""NetHack with seeds, which nle ignores where ``reset`` gets them, and with observations that do not change."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = dict[str, npt.NDArray[Any]]

_SEEDS = 2**63


class NetHackEnv(gymnasium.Wrapper[Obs, Any, Obs, Any]):
    """A task of nle in which a seed decides on all games that follow. ``options`` of ``reset`` are left out.

    Observations are copies: nle writes each over the one before.
    """

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
        obs, info = self.env.reset()
        return _copied(obs), info

    def step(self, action: Any) -> tuple[Obs, Any, bool, bool, dict[str, Any]]:
        """Press a key."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return _copied(obs), reward, terminated, truncated, info


def _copied(obs: Obs) -> Obs:
    return {name: values.copy() for name, values in obs.items()}
