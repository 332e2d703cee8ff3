"""Has the interface of megaverse.megaverse_env.MegaverseEnv: lists over all agents, old gym, images in shared memory.

It pays for a move forward. An episode lasts LENGTH steps, that of env 0 two; a reset is not drawn.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

LENGTH = 5


class MegaverseEnv:
    """All agents of all envs, env by env."""

    def __init__(
        self,
        scenario_name: str,
        num_envs: int,
        num_agents_per_env: int,
        num_simulation_threads: int,
        use_vulkan: bool = False,
        params: Mapping[str, float] | None = None,
    ) -> None:
        assert all(isinstance(value, float) for value in (params or {}).values())
        assert (num_agents_per_env, num_simulation_threads) == (1, 1)
        assert os.environ.get("CUDA_VISIBLE_DEVICES") != "", "the renderer finds no GPU: all are hidden"
        self.scenario_name, self.is_multiagent = scenario_name.casefold(), True
        self.num_agents, self.num_envs = num_envs, num_envs
        self.action_space = SimpleNamespace(spaces=[SimpleNamespace(n=n) for n in (3, 3, 3, 2, 2, 3)])
        self.observation_space = SimpleNamespace(shape=(3, 72, 128))
        self._random = np.random.default_rng()
        self._steps = [0] * num_envs
        self._drawn = np.zeros((num_envs, 72, 128, 4), np.uint8)

    def seed(self, seed: int | None = None) -> None:
        assert seed is None or isinstance(seed, int)
        self._random = np.random.default_rng(seed)

    def reset(self) -> list[Any]:
        self._steps = [0] * self.num_envs
        return self._observations()

    def step(self, actions: Sequence[Sequence[int]]) -> tuple[list[Any], list[float], list[bool], list[dict[str, Any]]]:
        assert [len(moves) for moves in actions] == [6] * self.num_agents
        assert all(isinstance(move, int) for moves in actions for move in moves)
        self._steps = [steps + 1 for steps in self._steps]
        self._drawn[:] = self._random.integers(0, 256, (self.num_envs, 1, 1, 4), np.uint8)
        dones = [steps >= (LENGTH if env else 2) for env, steps in enumerate(self._steps)]
        infos: list[dict[str, Any]] = [{"true_reward": float(env)} if done else {} for env, done in enumerate(dones)]
        self._steps = [0 if done else steps for done, steps in zip(dones, self._steps, strict=True)]
        return self._observations(), [float(moves[1] == 1) for moves in actions], dones, infos

    def close(self) -> None:
        self._steps = []

    def _observations(self) -> list[Any]:
        return [image[:, :, :3].transpose(2, 0, 1) for image in self._drawn]
