"""An Atari game with stacks of small grey frames and raw rewards.

It uses the emulator directly, without Gymnasium's environment and wrappers, so a step costs little more than the
emulation of its frames and two screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ale_py
import cv2
import gymnasium
import numpy as np
import numpy.typing as npt
from ale_py import roms

from sfactory.env.factory import GAME_CONTINUES, SPANS_FRAMES
from sfactory.errors import EnvError
from sfactory.packages import pip_install

from .frame_ring import FrameRing
from .shrinker import Shrinker

Obs = npt.NDArray[np.uint8]
Info = dict[str, Any]

_FRAMES_PER_SECOND = 60


@dataclass(frozen=True)
class Preprocessing:
    """Options of a game. Sources: Mnih et al. 2015; Machado et al. 2018 (repeat_action_probability).

    frameskip: frames that an action is held for; given by the flag env_frameskip
    noop_max: a game begins with 1 to noop_max frames of doing nothing; 0 is off
    repeat_action_probability: chance, frame by frame, that the last action is held instead of the chosen one
    episodic_life: a lost life terminates the episode for the learner; the game continues after the next reset
    fire_reset: games that have a fire button are started with it, after each reset
    framestack: frames in an observation, oldest first
    size: height and width of a frame in pixels
    grayscale: grey frames; False gives red, green and blue of each
    max_episode_frames: a game is truncated after this many frames
    full_action_space: all 18 actions instead of those that the game knows

    Raises EnvError if a value is out of range.
    """

    frameskip: int = 4
    noop_max: int = 30
    repeat_action_probability: float = 0.0
    episodic_life: bool = False
    fire_reset: bool = False
    framestack: int = 4
    size: int = 84
    grayscale: bool = True
    max_episode_frames: int = 108_000
    full_action_space: bool = False

    def __post_init__(self) -> None:
        least = {"frameskip": 1, "noop_max": 0, "framestack": 1, "size": 1, "max_episode_frames": 1}
        problems = [
            f"{name}={getattr(self, name)!r}: must be a whole number of at least {bound}"
            for name, bound in least.items()
            if type(getattr(self, name)) is not int or getattr(self, name) < bound
        ]
        if not 0.0 <= self.repeat_action_probability <= 1.0:
            problems.append(f"repeat_action_probability={self.repeat_action_probability!r}: must be from 0 to 1")
        if problems:
            raise EnvError("--env_kwargs: " + "; ".join(problems))


class AtariEnv(gymnasium.Env[Obs, np.int64]):
    """The game of the ROM ``rom``.

    Observations: [framestack, size, size] uint8, three times as many channels in color. Each frame is the maximum
    of the last two that an action was held for, since many games show some objects in every other frame only.
    Each observation has memory of its own.

    Rewards are the game's own points; the learner may clip them. ``info["lives"]`` is there after
    every step; the step that ends a whole game adds ``info["true_objective"]``, its score over all lives, and
    ``info["episode_extra_stats"]``: the same as ``game_score``, and ``game_length``, the number of steps. With
    episodic_life these are the figures to report, since an episode is one life then. The last step of each life but the
    last adds ``info["game_continues"]``, by which evaluations play whole games.

    After ``reset(seed=s)`` the game is a function of s and the actions.
    """

    metadata = {"render_modes": ["rgb_array"], SPANS_FRAMES: True}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, rom: str, settings: Preprocessing | None = None, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise EnvError(f"atari_{rom} has no render_mode {render_mode!r}; it has 'rgb_array'")
        self._settings = settings = settings or Preprocessing()
        self.render_mode = render_mode
        self.metadata = {**type(self).metadata, "render_fps": _FRAMES_PER_SECOND / settings.frameskip}
        cv2.setNumThreads(1)  # the processes around this one use the other cores
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        path = roms.get_rom_path(rom)
        if path is None:
            newer = f"run: {pip_install()} --upgrade ale-py"
            raise EnvError(f"atari_{rom}: this version of ale-py has no ROM of it; {newer}")
        self._rom_path = path
        self._ale = ale = ale_py.ALEInterface()
        # Sticky actions are drawn here, see _held: ale-py seeds its own draws only while it loads a ROM.
        ale.setFloat("repeat_action_probability", 0.0)
        ale.setInt("random_seed", 0)
        ale.loadROM(self._rom_path)
        self._pristine = True

        actions = ale.getLegalActionSet() if settings.full_action_space else ale.getMinimalActionSet()
        self._plain = [(action,) * settings.frameskip for action in actions]
        self._fires = ale_py.Action.FIRE in ale.getMinimalActionSet()
        screen = (*ale.getScreenDims(), *(() if settings.grayscale else (3,)))
        self._screens = [np.zeros(screen, np.uint8) for _ in range(2)]
        self._shrinker = Shrinker(screen, settings.size)
        self._read_screen = ale.getScreenGrayscale if settings.grayscale else ale.getScreenRGB
        frame = (1 if settings.grayscale else 3, settings.size, settings.size)
        self._ring = FrameRing(settings.framestack, frame)
        self.observation_space = gymnasium.spaces.Box(0, 255, self._ring.window.shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(actions))
        self._last_action = ale_py.Action.NOOP
        self._game_continues = False
        self._lives, self._score, self._steps = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, Info]:
        """Begin a game, or continue the same one after a lost life under episodic_life."""
        super().reset(seed=seed)
        if seed is not None and not self._pristine:
            # Some games carry memory from one game to the next; loading is what wipes it.
            self._ale.loadROM(self._rom_path)
            self._game_continues = False
        if not self._game_continues:
            self._begin_game()
        self._game_continues = False
        if self._settings.fire_reset and self._fires:
            self._score += self._play((ale_py.Action.FIRE,) * self._settings.frameskip)
            if self._ale.game_over():
                self._begin_game()
        self._lives = self._ale.lives()
        self._draw(self._ring.restart())
        self._ring.spread()
        return self._ring.window.copy(), {"lives": self._lives}

    def step(self, action: np.int64 | int) -> tuple[Obs, float, bool, bool, Info]:
        """Hold ``action`` for frameskip frames; the reward is the sum of theirs."""
        settings = self._settings
        points = self._play(self._plain[int(action)])
        self._score += points
        self._steps += 1
        lives, over = self._ale.lives(), self._ale.game_over()
        # Some games (Qbert) show 0 lives for a while before they are over; they end as a game, not as a life.
        life_lost = 0 < lives < self._lives
        self._lives = lives
        truncated = not over and self._steps * settings.frameskip >= settings.max_episode_frames
        terminated = over or (settings.episodic_life and life_lost)
        self._game_continues = terminated and not over and not truncated
        info: Info = {"lives": lives}
        if self._game_continues:
            info[GAME_CONTINUES] = True
        if over or truncated:
            score = info["true_objective"] = float(self._score)
            info["episode_extra_stats"] = {"game_score": score, "game_length": float(self._steps)}
        self._draw(self._ring.push())
        return self._ring.window.copy(), float(points), terminated, truncated, info

    def render(self) -> Obs | None:
        """The screen, [210, 160, 3] uint8; None without render_mode="rgb_array"."""
        return None if self.render_mode is None else self._ale.getScreenRGB()

    def _begin_game(self) -> None:
        ale = self._ale
        self._pristine = False
        ale.reset_game()
        self._last_action = ale_py.Action.NOOP
        self._score, self._steps = 0, 0
        noop_max = self._settings.noop_max
        for _ in range(int(self.np_random.integers(1, noop_max + 1)) if noop_max else 0):
            ale.act(ale_py.Action.NOOP)
            if ale.game_over():
                ale.reset_game()
        self._read_screen(self._screens[0])

    def _play(self, actions: Sequence[Any]) -> int:
        """Act frame by frame, and leave the maximum of the last two frames in screen 0; returns the points.

        A game that ends meanwhile stands still: further frames show its last screen and give no points.
        """
        if self._settings.repeat_action_probability > 0.0:
            actions = self._held(actions)
        act, points = self._ale.act, 0
        for action in actions[:-2]:
            points += act(action)
        for action, screen in zip(actions[-2:], self._screens, strict=False):
            points += act(action)
            self._read_screen(screen)
        if len(actions) > 1:
            np.maximum(self._screens[0], self._screens[1], out=self._screens[0])
        return int(points)

    def _held(self, actions: Sequence[Any]) -> list[Any]:
        """Sticky actions: in each frame the action of the frame before may be held instead (Machado et al. 2018)."""
        held = []
        for action, draw in zip(actions, self.np_random.random(len(actions)), strict=True):
            if draw >= self._settings.repeat_action_probability:
                self._last_action = action
            held.append(self._last_action)
        return held

    def _draw(self, frame: Obs) -> None:
        """Screen 0, made small, into ``frame`` [C, size, size]."""
        small = self._shrinker.shrink(self._screens[0])
        frame[:] = small if self._settings.grayscale else small.transpose(2, 0, 1)
