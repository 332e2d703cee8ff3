"""Small envs of every interface, each with the one flaw that it is made with; "" has none."""

from __future__ import annotations

import functools
import mmap
import os
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

import gymnasium
import gymnasium.spaces as spaces
import numpy as np

STEPS = 8  # of an episode
_END = threading.Event()


class Flawed(gymnasium.Env[Any, Any]):
    """Shows three random numbers; every action earns 1."""

    def __init__(self, flaw: str = "") -> None:
        self.flaw, self._episode, self._step = flaw, 0, 0
        self.observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space: Any = spaces.Discrete(3)
        self._shared, self._hoard = np.zeros(3, np.float32), list[Any]()
        if flaw == "text space":
            self.observation_space = spaces.Dict(seen=self.observation_space, note=spaces.Text(5))
        if flaw == "numbers":
            self.observation_space = spaces.Box(-1, 0.7, (3,), np.float32)
        if flaw == "text alone":
            self.observation_space = spaces.Text(5)
        if flaw == "text action":
            self.action_space = spaces.Text(5)
        if flaw in ("mask", "empty mask"):
            self.observation_space = spaces.Dict(seen=self.observation_space, action_mask=spaces.MultiBinary(3))
        if flaw == "thread":
            threading.Thread(target=_END.wait, args=(5.0,), name="simulator", daemon=True).start()
        if flaw == "child":
            self._child = subprocess.Popen(["sleep", "5"])
        if flaw == "no seed":
            self.reset = self._reset_without_seed  # type: ignore[method-assign,assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.flaw == f"seed {seed} raises":
            raise ValueError(f"no level {seed}")
        self._episode, self._step = self._episode + 1, 0
        if self.flaw == "hang" and self._episode == 3:
            time.sleep(20)
        return self._obs() if self.flaw == "reset alone" else (self._obs(), self._info())

    def _reset_without_seed(self) -> Any:
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        flaw = self.flaw
        if flaw == "second episode raises" and self._episode > 2:
            raise ConnectionError("the simulator is gone")
        if flaw == "exit" and self._episode == 3:
            sys.exit(0)
        if flaw == "crash" and self._episode == 3:
            os._exit(7)
        if flaw == "action" and action == 2:
            raise IndexError("no action 2")
        if flaw == "leak":
            pages = mmap.mmap(-1, 16_000)  # not from memory that the process has freed before
            pages.write(bytes(16_000))
            self._hoard += [pages, object()]
        if flaw == "prints":
            print("step", self._step)
        over: Any = self._step == STEPS and flaw != "endless"
        if flaw == "int flags":
            over = int(over)
        reward = {"no reward": None, "infinite reward": np.inf, "array reward": np.ones(2), "three": None}.get(
            flaw, 1.0
        )
        given = self._obs(), reward, over, False, self._info()
        return (*given[:3], given[4]) if flaw == "four" else list(given) if flaw == "list" else given

    def close(self) -> None:
        if self.flaw == "close raises":
            raise RuntimeError("the window is gone")

    def _info(self) -> Any:
        return {
            "info list": [],
            "three": None,
            "large info": {"frame": np.zeros((200, 200, 3), np.uint8)},
            "number keys": {1: 2},
            "text statistics": {"episode_extra_stats": {"level": "one"}},
        }.get(self.flaw, {})

    def _obs(self) -> Any:
        drawn = (np.random if self.flaw == "seed ignored" else self.np_random).uniform(-1, 1, 3).astype(np.float32)
        if self.flaw == "same numbers":
            drawn[:] = 0.5
        mask = np.ones(3, np.int8) if self._step % 3 == 0 or self.flaw == "mask" else np.zeros(3, np.int8)
        if self.flaw == "same buffer":
            self._shared[:] = drawn
        odd = {
            "shape": np.zeros(4, np.float32),
            "three": np.zeros(4, np.float32),
            "dtype": drawn.astype(np.float64),
            "complex": drawn.astype(np.complex64),
            "bounds": drawn + 5,
            "nan": np.full(3, np.nan, np.float32),
            "numbers": [0.7, min(float(drawn[0]), 0.7), -1.0],
            "same buffer": self._shared,
            "text space": {"seen": drawn, "note": "abc"},
            "text alone": "abc",
            "mask": {"seen": drawn, "action_mask": mask},
            "empty mask": {"seen": drawn, "action_mask": mask},
            "no dict": None,
        }
        return odd.get(self.flaw, drawn)


class FlawedVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The same for several envs at once."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, flaw: str = "") -> None:
        self.num_envs, self.flaw, self._step = num_envs, flaw, 0
        self.single_observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        if flaw == "no resets":
            self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
        if flaw in ("no mode", "no mode, paid"):
            self.metadata = {}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self._step += 1
        flags = np.full(self.num_envs, self._step % (STEPS + 1) == STEPS and self.flaw != "endless")
        rewards: Any = 1.0 if self.flaw == "one reward" else np.ones(self.num_envs)
        if self.flaw == "no mode" and self._step % (STEPS + 1) == 0:
            rewards[:] = 0.0
        ended: Any = flags.astype(int) if self.flaw == "int flags" else flags
        return self._obs(), rewards, ended, np.zeros_like(flags), self._infos()

    def _infos(self) -> Any:
        return {
            "info list": [],
            "one objective": {"true_objective": 3.0},
            "text statistics": {"episode_extra_stats": {"level": ["one"] * self.num_envs}},
            "dicts": {"episode_extra_stats": [{"level": 1}] * self.num_envs},
        }.get(self.flaw, {})

    def _obs(self) -> Any:
        size = self.num_envs + (self.flaw == "batch")
        return self.np_random.uniform(-1, 1, (size, 3)).astype(np.float32)


class FlawedParallel:
    """Two agents of PettingZoo's parallel interface."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    render_mode = None

    def __init__(self, flaw: str = "") -> None:
        self.flaw, self.agents = flaw, list[str]()
        self.possible_agents = ["ann", "bob"]
        if flaw != "new spaces":
            self.observation_space = functools.cache(self.observation_space)  # type: ignore[method-assign]
            self.action_space = functools.cache(self.action_space)  # type: ignore[method-assign]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: object = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._step = [*self.possible_agents], 0
        if self.flaw == "stranger":
            self.agents.append("cat")
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self._step += 1
        over = self._step == STEPS
        names = [*self.agents]
        rewards, ends = dict.fromkeys(names, 1.0), dict.fromkeys(names, over)
        shown = self._shown()
        if self.flaw == "wrong keys":
            rewards = {"dog": 1.0}
        if self.flaw == "no reward":
            rewards["bob"] = None  # type: ignore[assignment]
        if over and self.flaw != "stays":
            self.agents = []
        infos: Any = [] if self.flaw == "info list" else {agent: {} for agent in names}
        given = shown, rewards, ends, dict.fromkeys(names, False), infos
        return given[:4] if self.flaw == "four" else given

    def close(self) -> None: ...

    def _shown(self) -> dict[str, Any]:
        shown = {agent: self._rng.uniform(-1, 1, 3).astype(np.float32) for agent in self.agents}
        if self.flaw == "unseen" and self._step == 3:
            del shown["bob"]
        if self.flaw == "nan":
            shown["bob"] = np.full(3, np.nan, np.float32)
        return shown


class FlawedTurns(FlawedParallel):
    """Two agents of PettingZoo's interface of turns (AEC)."""

    def reset(self, seed: int | None = None, options: object = None) -> None:
        super().reset(seed)
        self.rewards = self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.truncations, self.infos = (
            dict.fromkeys(self.agents, False),
            {agent: dict[str, Any]() for agent in self.agents},
        )
        self.terminations = dict.fromkeys(self.agents, self.flaw == "selection done")
        self.agent_selection = self.agents[0]
        if self.flaw == "no infos":
            del self.infos

    def agent_iter(self) -> None: ...

    def observe(self, agent: str) -> Any:
        return np.full(3, np.nan if self.flaw == "nan" else self._step / STEPS, np.float32)

    def last(self) -> Any:
        agent = self.agent_selection
        given: tuple[Any, ...] = self.observe(agent), 1.0, self.terminations[agent], self.truncations[agent], {}
        return given[:4] if self.flaw == "four" else given

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            if self.flaw != "stays":
                self.agents.remove(self.agent_selection)
        else:
            self._step += 1
            self.terminations = dict.fromkeys(self.agents, self._step == STEPS)
        if self.agents:
            place = self.possible_agents.index(self.agent_selection)
            self.agent_selection = "cat" if self.flaw == "strange turn" else self.possible_agents[1 - place]


class FlawedLists:
    """Two agents of the interface of lists."""

    num_agents, is_multiagent = 2, True

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        self.observation_space, self.action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._step = 0
        return self._shown(), [{}, {}]

    def step(self, actions: Any) -> Any:
        self._step += 1
        rewards = [1.0] if self.flaw == "one reward" else [1.0, None] if self.flaw == "no reward" else [1.0, 1.0]
        return self._shown(), rewards, [self._step == STEPS and self.flaw != "endless"] * 2, [False] * 2, [{}, {}]

    def close(self) -> None: ...

    def _shown(self) -> list[Any]:
        return list(self._rng.uniform(-1, 1, (2, 4 if self.flaw == "shape" else 3)).astype(np.float32))


def nothing() -> Any:
    """A function that forgets to return the env."""


def of_missing_package() -> Any:
    """Imports what is not installed."""
    import no_such_simulator  # type: ignore[import-not-found]

    return no_such_simulator
