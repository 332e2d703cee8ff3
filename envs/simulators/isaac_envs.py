"""Simulations of many envs in tensors as vector envs of arrays in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from sfactory.env.vector import VectorEnv


def _copied(tensor: torch.Tensor) -> Any:
    """In host memory of its own, since simulations use theirs again with the next step."""
    return tensor.detach().to("cpu", copy=True).numpy()


def _read(space: gymnasium.Space[Any], obs: Any) -> Any:
    """The tensors of ``obs`` that ``space`` names, as arrays [N, ...]."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: _read(inner, obs[name]) for name, inner in space.items()}
    return _copied(obs).astype(space.dtype, copy=False)


class IsaacLabEnv(VectorEnv):
    """Isaac Lab's env: a step that ends an episode returns the first observation of the next one.

    Observations are a Dict of groups, as Isaac Lab has them: ``policy``, and where the task has it ``critic``.
    """

    def __init__(self, env: Any) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._env, self.num_envs = env, int(env.num_envs)
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of each."""
        obs, _ = self._env.reset(seed=seed if isinstance(seed, int) or seed is None else seed[0])
        return _read(self.single_observation_space, obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step each. actions: [N, A]"""
        tensor = torch.as_tensor(np.asarray(actions), dtype=torch.float32, device=self._env.device)
        obs, rewards, terminated, truncated, _ = self._env.step(tensor)
        read = _read(self.single_observation_space, obs)
        return read, _copied(rewards), _copied(terminated), _copied(truncated), {}

    def close_extras(self, **kwargs: Any) -> None:
        """End the simulation where it can be ended."""
        if close := getattr(self._env, "close", None):
            close()
