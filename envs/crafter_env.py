"""Crafter with Gymnasium's interface; the package has that of the older gym."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import crafter
import crafter.engine
import gymnasium
import numpy as np
import numpy.typing as npt

Obs = npt.NDArray[np.uint8]
Info = dict[str, Any]

_SHOWN = (512, 512)  # pixels of a picture for people


class _Objects(dict[Any, None]):
    """A set of objects that keeps the order in which they came."""

    def add(self, thing: Any) -> None:
        self[thing] = None

    def remove(self, thing: Any) -> None:
        del self[thing]


class _World(crafter.engine.World):  # type: ignore[misc]
    """A world that a seed repeats: the package keeps creatures in sets, and their order depends on addresses."""

    def reset(self, seed: int | None = None) -> None:
        """Empty it."""
        super().reset(seed)
        self._chunks: dict[Any, _Objects] = defaultdict(_Objects)


class CrafterEnv(gymnasium.Env[Obs, np.int64]):
    """A world in which to survive and to unlock 22 achievements; an episode ends with death, or is cut at 10,000 steps.

    Observations: [64, 64, 3] uint8. The last info of an episode says in ``episode_extra_stats`` which achievements
    were unlocked in it (0 or 1): their means are the success rates of which Crafter's score is made.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, render_mode: str | None = None, **kwargs: Any) -> None:
        """``kwargs``: those of crafter.Env."""
        self.render_mode, self._kwargs = render_mode, kwargs
        self._env = self._made()
        shape = self._env.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self._env.action_space.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, Info]:
        """Begin an episode in a new world; ``seed`` decides on this world and on all later ones."""
        super().reset(seed=seed)
        if seed is not None:
            self._env = self._made(seed=seed)
        return self._env.reset(), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, Info]:
        """Act once."""
        obs, reward, over, info = self._env.step(action)
        died = info["discount"] == 0.0
        if over:
            unlocked = {f"unlocked_{name}": float(count > 0) for name, count in info["achievements"].items()}
            info["episode_extra_stats"] = unlocked
        return obs, float(reward), over and died, over and not died, info

    def render(self) -> Obs:
        """[512, 512, 3] uint8"""
        picture: Obs = self._env.render(_SHOWN)
        return picture

    def _made(self, **more: Any) -> Any:
        env = crafter.Env(**{**self._kwargs, **more})
        env._world.__class__ = _World  # which the views of the env hold, too
        return env
