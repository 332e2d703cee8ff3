"""Makes the images of VizDoom's envs small, and corrects the ends of their episodes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = dict[str, npt.NDArray[Any]]
Info = dict[str, Any]

# A step turns or moves by at most so much, where a scenario has buttons with amounts (as in Sample Factory).
_LARGEST_DELTA = 12.5


class DoomEnv(gymnasium.Wrapper[Obs, Any, Obs, Any]):
    """An env of the package vizdoom whose images are small, and whose time limits truncate.

    Observations: screen [height, width, 3] uint8, and what the scenario shows beside it (gamevariables [n] float32).
    A finished game shows nothing any more, so the last observation of an episode is the one before.
    """

    def __init__(self, env: gymnasium.Env[Obs, Any], width: int, height: int, own_settings: bool = False) -> None:
        """``own_settings``: a file for the game's settings was given, which is kept."""
        super().__init__(env)
        self._game = env.get_wrapper_attr("game")
        if not own_settings:  # or it writes its own into the current folder when it ends
            self._game.set_doom_config_path(os.devnull)
        seen: Any = env.observation_space
        drawn: dict[str, Any] = {name: space.shape for name, space in seen.items() if len(space.shape or ()) == 3}
        rows, columns, _ = drawn["screen"]
        # [height * width] - places of the seen pixels among the drawn ones; faster than an index of rows and columns.
        self._pixels = (_middles(rows, height)[:, None] * columns + _middles(columns, width)).ravel()
        images: dict[str, Any] = {
            name: gymnasium.spaces.Box(0, 255, (height, width, shape[2]), np.uint8) for name, shape in drawn.items()
        }
        self._images = {name: space.shape for name, space in images.items()}
        small: Any = gymnasium.spaces.Dict({**seen, **images})
        self.observation_space = small
        self.action_space = _bounded(env.action_space)
        self._last: Obs = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, Info]:
        """Begin an episode; the first reset starts the game."""
        with contextlib.nullcontext() if self._game.is_running() else _in_passing_folder():
            obs, info = self.env.reset(seed=seed, options=options)
        return self._small(obs), info

    def step(self, action: Any) -> tuple[Obs, Any, bool, bool, Info]:
        """Press the buttons of ``action`` for some frames."""
        obs, reward, ended, timed_out, info = self.env.step(action)
        return self._last if ended else self._small(obs), reward, ended and not timed_out, timed_out, info

    def _small(self, obs: Obs) -> Obs:
        small = {
            name: obs[name].reshape(-1, shape[2]).take(self._pixels, axis=0).reshape(shape)
            for name, shape in self._images.items()
        }
        self._last = {**obs, **small}
        return self._last


@contextlib.contextmanager
def _in_passing_folder() -> Iterator[None]:
    """A folder that is gone once a game has started in it, and a kill leaves none: a game makes an empty one there."""
    # Windows keeps the folder in which a program runs.
    passing = tempfile.TemporaryDirectory(prefix="sfactory-doom-", ignore_cleanup_errors=True)
    with passing as folder, contextlib.chdir(folder):
        yield


def _middles(drawn: int, wanted: int) -> npt.NDArray[np.intp]:
    """[wanted] - the rows or columns of an image of ``drawn`` ones that make it as small: each nearest to its place."""
    return ((np.arange(wanted) + 0.5) * drawn / wanted).astype(np.intp)


def _bounded(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The action space with amounts of turns and moves that a policy can learn; vizdoom's bounds are float32's."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({name: _bounded(child) for name, child in space.items()})
    if isinstance(space, gymnasium.spaces.Box):
        return gymnasium.spaces.Box(-_LARGEST_DELTA, _LARGEST_DELTA, space.shape, np.float32)
    return space
