"""What an agent of MiniGrid observes, as numbers that a network reads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

from sfactory.errors import EnvError

_log = logging.getLogger(__name__)

Obs = dict[str, Any]
View = Literal["flat", "image", "rgb"]

_VALUES = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX))
_TILE = 8  # height and width of a cell in pixels
# All words of the missions of minigrid 3; 0 is no word, 1 any other one.
_WORDS = (
    *("a", "after", "and", "at", "avoid", "ball", "behind", "blue", "box", "door", "end", "fetch", "find", "from"),
    *("front", "get", "go", "goal", "green", "grey", "hallway", "in", "key", "lava", "left", "matching", "must"),
    *("near", "next", "object", "of", "on", "open", "opening", "pick", "purple", "put", "reach", "red", "right"),
    *("room", "rooms", "square", "the", "then", "to", "traverse", "unlock", "up", "use", "yellow", "you", "your"),
)
_NUMBER_OF = {word: number for number, word in enumerate(_WORDS, start=2)}
# Four of BabyAI's longest orders, each "put a red box in front of you next to a blue ball in front of you", and joints.
_LONGEST = 72
_warned = set[str]()  # of what this process has warned


class GridView(gymnasium.Wrapper[Obs, Any, Obs, Any], gymnasium.utils.RecordConstructorArgs):
    """MiniGrid's observations with numbers in place of text.

    image: what the agent sees, V x V cells (V is 7). ``view`` says how:
        flat: [V * V * 3] uint8 - object, color and state of each cell, as choices
        image: [V, V, 20] uint8 - the same one-hot, for convolutions
        rgb: [8 * V, 8 * V, 3] uint8 - a picture
    direction: int - the direction that the agent faces, 0 to 3
    mission: [72] uint8 - the words of the mission as choices. Longer missions are cut, and unknown words are all the
        same; the first such mission in a process is logged.
    """

    def __init__(self, env: gymnasium.Env[Obs, Any], view: str) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, view=view)
        gymnasium.Wrapper.__init__(self, env)
        if view not in get_args(View):
            raise EnvError(f"--env_kwargs: minigrid_obs={view!r}: must be one of {', '.join(get_args(View))}")
        self._view = view
        given = env.observation_space
        assert isinstance(given, spaces.Dict)
        side = given["image"].shape[0]  # type: ignore[index]
        image: spaces.Space[Any]
        if view == "flat":
            image = spaces.MultiDiscrete(np.tile(_VALUES, side * side), dtype=np.uint8)
        elif view == "image":
            image = spaces.Box(0, 1, (side, side, sum(_VALUES)), np.uint8)
        else:
            image = spaces.Box(0, 255, (side * _TILE, side * _TILE, 3), np.uint8)
        mission = spaces.MultiDiscrete([len(_WORDS) + 2] * _LONGEST, dtype=np.uint8)
        self.observation_space = spaces.Dict(image=image, direction=given["direction"], mission=mission)
        self._text, self._words = "", np.zeros(_LONGEST, np.uint8)
        self._one_hot = [np.eye(values, dtype=np.uint8) for values in _VALUES]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode."""
        with contextlib.redirect_stdout(None):  # BabyAI prints each mission that it tries and gives up
            obs, info = self.env.reset(seed=seed, options=options)
        return self._shown(obs), info

    def step(self, action: Any) -> tuple[Obs, Any, bool, bool, dict[str, Any]]:
        """Act."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(obs), reward, terminated, truncated, info

    def _shown(self, obs: Obs) -> Obs:
        if obs["mission"] != self._text:
            self._text, self._words = obs["mission"], _numbers_of(obs["mission"])
        return {"image": self._seen(obs["image"]), "direction": obs["direction"], "mission": self._words}

    def _seen(self, cells: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        if self._view == "flat":
            return cells.reshape(-1)
        if self._view == "image":
            parts = [table[cells[..., part]] for part, table in enumerate(self._one_hot)]
            return np.concatenate(parts, axis=-1)
        pixels: npt.NDArray[np.uint8] = self.get_wrapper_attr("get_frame")(tile_size=_TILE, agent_pov=True)
        return pixels


def _numbers_of(mission: str) -> npt.NDArray[np.uint8]:
    words = mission.lower().replace(",", " ").split()
    if len(words) > _LONGEST:
        _warn_once(f"has more than {_LONGEST} words, which are cut", mission)
    if unknown := [word for word in words[:_LONGEST] if word not in _NUMBER_OF]:
        _warn_once("has words that sfactory does not know and shows as the same one", mission, unknown)
    numbers = [_NUMBER_OF.get(word, 1) for word in words[:_LONGEST]]
    return np.array(numbers + [0] * (_LONGEST - len(numbers)), np.uint8)


def _warn_once(problem: str, mission: str, words: Sequence[str] = ()) -> None:
    if problem not in _warned:
        _warned.add(problem)
        _log.warning("the mission %r %s%s", mission, problem, f": {', '.join(words)}" if words else "")
