"""Shows one instance of Megaverse, which simulates many envs at once, as a vector env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from megaverse.megaverse_env import MegaverseEnv

from sfactory.env.vector import VectorEnv

Array = npt.NDArray[Any]


class MegaverseVectors(VectorEnv):
    """N envs of one agent each. Observations: [N, 3, 72, 128] uint8; actions: [N, 6], a choice for each kind of move.

    An env that ends is reset in the same step, but not drawn: an episode begins with the last image of the one before.
    Megaverse does not say why an episode ends, so that each end is a termination.
    """

    def __init__(
        self, scenario: str, num_envs: int, threads: int, use_vulkan: bool, params: Mapping[str, float]
    ) -> None:
        self._env: Any = MegaverseEnv(scenario, num_envs, 1, threads, use_vulkan, dict(params))
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        # Megaverse's own are those of the older package gym.
        seen, moves = self._env.observation_space, self._env.action_space
        self.single_observation_space = spaces.Box(0, 255, tuple(seen.shape), np.uint8)
        self.single_action_space = spaces.MultiDiscrete([move.n for move in moves.spaces])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode of each. The seeds of all follow from the first one."""
        first = seed[0] if isinstance(seed, Sequence) else seed
        if first is not None:
            self._env.seed(int(first) % 2**31)  # a C int
        return np.stack(self._env.reset()), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step each; the infos of ends have ``true_objective``."""
        observations, rewards, dones, infos = self._env.step(actions.tolist())
        ended = np.array(dones, bool)
        objectives = np.array([info.get("true_reward", 0.0) for info in infos])
        final = {"true_objective": objectives, "_true_objective": ended}
        ends: dict[str, Any] = {"final_info": final} if ended.any() else {}
        # stack copies: the images are memory of the renderer.
        return np.stack(observations), np.array(rewards, np.float64), ended, np.zeros_like(ended), ends

    def close_extras(self, **kwargs: Any) -> None:
        """End the simulation and its threads."""
        self._env.close()
