"""NetHack with seeds, which nle ignores where ``reset`` gets them, and with observations that do not change."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import TimeLimit

Obs = dict[str, npt.NDArray[Any]]

_SEEDS = 2**63


class NetHackEnv(gymnasium.Wrapper[Obs, Any, Obs, Any]):
    """A task of nle in which a seed decides on all games that follow. ``options`` of ``reset`` are left out.

    Limits truncate: Gymnasium's, of as many steps as nle has, and in NetHackChallenge the one of steps without a turn.
    Observations are copies: nle writes each over the one before.
    """

    def __init__(self, env: gymnasium.Env[Obs, Any], has_limit: bool, takes_seeds: bool) -> None:
        """has_limit: ``env`` has its limit of steps. takes_seeds: False if the task refuses them."""
        game: Any = env.unwrapped
        if not has_limit:
            env = TimeLimit(env, int(game._max_episode_steps))
        game._max_episode_steps = math.inf  # nle quits the game there, as if the hero had died
        super().__init__(env)
        self._game, self._takes_seeds = game, takes_seeds
        self._random = np.random.default_rng()
        self._last: Obs = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin a game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if self._takes_seeds:
            core, display = map(int, self._random.integers(_SEEDS, size=2))
            # reseed: NetHack would draw new seeds from the machine now and then.
            self._game.seed(core, display, reseed=False)
        obs, info = self.env.reset()
        self._last = _copied(obs)
        return self._last, info

    def step(self, action: Any) -> tuple[Obs, Any, bool, bool, dict[str, Any]]:
        """Press a key."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated and info["end_status"] == self._game.StepStatus.ABORTED:
            # nle has quit the game, and shows nothing of it any more.
            return self._last, reward, False, True, info
        self._last = _copied(obs)
        return self._last, reward, terminated, truncated, info


def _copied(obs: Obs) -> Obs:
    return {name: values.copy() for name, values in obs.items()}
