"""Envs that follow a script of episodes, record their actions and fail at given steps, and their replacements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt

from sfactory.actor.env_batch import EnvBatch
from sfactory.actor.env_restarts import BadDataCounter, EnvRestarter, FaultHandling, LostEpisodes
from sfactory.env.conversion import Flaw, ObsWriter
from sfactory.shared.control import Control
from sfactory.shared.status import StatusBoard, StatusRow
from tests.support.parts import SCALAR

Obs = npt.NDArray[np.float32]
Ending = Literal["terminated", "truncated", "both"]
Episode = tuple[int, Ending]


def obs_at(episode: int, step: int) -> float:
    """The number that the env shows after ``step`` steps of ``episode``, both from 0."""
    return 100.0 * episode + step


ACTOR = "sf-actor-0"


class Broken(RuntimeError):
    """What a scripted env raises."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong, by number of the step or reset of one env, from 1.

    steps, resets: those that raise. rewards, shown: what a step gives instead of its reward and observation.
    reset_shown: what a reset shows.
    """

    steps: Sequence[int] = ()
    resets: Sequence[int] = ()
    rewards: Mapping[int, Any] = field(default_factory=dict)
    shown: Mapping[int, Any] = field(default_factory=dict)
    reset_shown: Mapping[int, Any] = field(default_factory=dict)


class ScriptedEnv(gymnasium.Env[Obs, int]):
    """Plays ``script``, then one endless episode. A step pays the number shown before it, plus 0.5.

    base: added to all that is shown and paid. on_call: called with each call. taken: the actions it was given. seeds:
    of its resets. closed: whether close() was called.
    """

    def __init__(self, script: Sequence[Episode] = (), faults: Faults | None = None, base: float = 0.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space: gymnasium.spaces.Space[Any] = gymnasium.spaces.Discrete(10)
        self.script, self._faults, self._base = list(script), faults or Faults(), base
        self._episode, self._step, self._running = -1, 0, False
        self.taken: list[int] = []
        self.seeds: list[int | None] = []
        self.closed = False
        self.on_call: Callable[[str], None] = lambda what: None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        self.on_call("reset")
        self.seeds.append(seed)
        self._episode, self._step, self._running = self._episode + 1, 0, True
        number = len(self.seeds)
        if number in self._faults.resets:
            raise Broken(f"reset {number} fails")
        return self._faults.reset_shown.get(number, self._obs()), {}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        assert self._running, "stepped after the end of an episode"
        self.taken.append(action)
        number = len(self.taken)
        if number in self._faults.steps:
            raise Broken(f"step {number} fails")
        reward = self._faults.rewards.get(number, self._base + obs_at(self._episode, self._step) + 0.5)
        self._step += 1
        length, ending = self.script[self._episode] if self._episode < len(self.script) else (2**31, "both")
        over = self._step == length
        self._running = not over
        obs = self._faults.shown.get(number, self._obs())
        return obs, reward, over and ending != "truncated", over and ending != "terminated", {}

    def close(self) -> None:
        self.closed = True

    def _obs(self) -> Obs:
        return np.array([self._base + obs_at(self._episode, self._step)], np.float32)


class EnvStock:
    """Makes the replacements of broken envs: those of ``stock`` in turn, of which exceptions are raised.

    After them it makes endless envs, the k-th of all with a base of 1000 k. made, seeds: of all envs so far.
    """

    def __init__(self, *stock: ScriptedEnv | Exception) -> None:
        self._stock = list(stock)
        self.made: list[ScriptedEnv] = []
        self.seeds: list[int] = []
        self.on_call: Callable[[str], None] = lambda what: None

    def make(self, seed: int) -> ScriptedEnv:
        self.on_call("make")
        self.seeds.append(seed)
        env = self._stock.pop(0) if self._stock else ScriptedEnv(base=1000.0 * (len(self.made) + 1))
        if isinstance(env, Exception):
            raise env
        env.on_call = self.on_call
        self.made.append(env)
        return env


class FaultRecord:
    """The fault handling of one actor, and the status row that it counts in. The n-th seed is 7000 + n."""

    def __init__(
        self, make: Callable[[int], Any], most_restarts: int = 20, most_bad_data: float = 0.01, env_steps: int = 0
    ) -> None:
        board = StatusBoard([ACTOR])
        self.row: StatusRow = board.row(ACTOR)
        self.row.add("env_steps", env_steps)
        self.control = Control(1)
        lost = LostEpisodes(ACTOR, 1, board)  # of which none is counted here
        restarter = EnvRestarter(ACTOR, most_restarts, lambda env, count: 7000 + count, self.control, self.row, lost)
        bad_data = BadDataCounter(ACTOR, most_bad_data, self.row, lost)
        self.handling = FaultHandling(restarter, bad_data, lambda env, seed: make(seed))

    def counts(self) -> tuple[int, int]:
        """Envs that were recreated, and steps with invalid data."""
        return int(self.row.get("env_restarts")), int(self.row.get("bad_env_data"))


class _NoBadData(BadDataCounter):
    def add(self, flaws: Mapping[int, Flaw]) -> None:
        assert not flaws


def no_faults() -> FaultHandling:
    """For envs without faults: the first one ends the test."""
    record = FaultRecord(make=lambda seed: None, most_restarts=0)
    lost = LostEpisodes(ACTOR, 1, StatusBoard([ACTOR]))
    return dataclasses.replace(record.handling, bad_data=_NoBadData(ACTOR, 0.0, record.row, lost))


def batch_of(envs: Sequence[gymnasium.Env[Any, Any]]) -> EnvBatch:
    """A batch of envs without faults, in no split."""
    batch = EnvBatch(envs)
    batch.handle_faults(no_faults(), 0, ObsWriter(SCALAR, ScriptedEnv().observation_space))
    return batch
