"""Envs with known returns, envs that write down what their process may use, and functions for --policy_mapping."""

from __future__ import annotations

import ctypes
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_info

Obs = npt.NDArray[np.float32]
LOW_RETURN, HIGH_RETURN = 1.0, 5.0
STEPS = 4  # of an episode


class Seesaw(gymnasium.Env[Obs, np.int64]):
    """Returns are LOW_RETURN and HIGH_RETURN in turns, whatever is done, and ``score`` is 1000 times as much."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._episode, self._step = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        self._episode, self._step = self._episode + 1, 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._step < STEPS:
            return self._obs(), 0.0, False, False, {}
        value = HIGH_RETURN if self._episode % 2 else LOW_RETURN
        return self._obs(), value, True, False, {"episode_extra_stats": {"score": 1000.0 * value}}

    def _obs(self) -> Obs:
        return np.array([self._step / STEPS], np.float32)


class Fading(Seesaw):
    """Each episode returns less than the one before: the policy that plays the first ones is the best."""

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        obs, _, over, truncated, info = super().step(action)
        return obs, -float(self._episode) if over else 0.0, over, truncated, info


class Unhurried(Seesaw):
    """A step takes a millisecond, so that main sees a run of some thousand steps in progress."""

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        time.sleep(1e-3)
        return super().step(action)


class Threaded(Seesaw):
    """Loads a native library, and writes to ``folder``, at its first step, how many threads each one has.

    The file is called like the process and holds the threads by path of the library.
    """

    def __init__(self, folder: str, library: str) -> None:
        super().__init__()
        ctypes.CDLL(library)
        self._path: Path | None = Path(folder) / Path("/proc/self/comm").read_text().strip()

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if self._path is not None:
            threads = {str(info["filepath"]): int(info["num_threads"]) for info in threadpool_info()}
            unfinished = self._path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(threads))
            os.replace(unfinished, self._path)
            self._path = None
        return super().step(action)


class Drawing(Seesaw):
    """Draws from its process's own generators, and appends what it got at its first step to a file in ``folder``.

    The file is called like the process; a line holds the numbers of Python, numpy and torch.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._path: Path | None = Path(folder) / Path("/proc/self/comm").read_text().strip()

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if self._path is not None:
            drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
            with self._path.open("a") as file:
                file.write(f"{json.dumps(drawn)}\n")
            self._path = None
        return super().step(action)


class Hangs(Seesaw):
    """Its 40th step never ends."""

    hangs_at = 40

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self.hangs_at and self._hangs():
            time.sleep(9999.0)
        return super().step(action)

    def _hangs(self) -> bool:
        return True


class HangsInActor1(Hangs):
    """Hangs in its first step in the process sf-actor-1, and is like others everywhere else."""

    hangs_at = 1

    def _hangs(self) -> bool:
        return Path("/proc/self/comm").read_text().strip() == "sf-actor-1"


def mostly_the_first(agent: str, episode: int, env: int) -> int:
    """Policy 1 in every 20th episode of one env, policy 0 otherwise."""
    return int(env == 0 and episode % 20 == 19)


def unknown(agent: str, episode: int, env: int) -> int:
    """A policy that is not there."""
    return 7


def soon_without_the_third(agent: str, episode: int, env: int) -> int:
    """Policy 2 plays the first episodes of every env, and never again."""
    return env % 3 if episode < 5 else env % 2
