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

Steps = tuple[Any, Any, Any, Any, dict[str, Any]]


def _copied(tensor: torch.Tensor) -> Any:
    """In host memory of its own, since simulations use theirs again with the next step."""
    return tensor.detach().to("cpu", copy=True).numpy()


def _read(space: gymnasium.Space[Any], obs: Any) -> Any:
    """The tensors of ``obs`` that ``space`` names, as arrays [N, ...]."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: _read(inner, obs[name]) for name, inner in space.items()}
    return _copied(obs).astype(space.dtype, copy=False)


class TensorEnv(VectorEnv):
    """N envs in one simulation ``env``, whose spaces for one env are given."""

    def __init__(self, env: Any, obs: gymnasium.Space[Any], actions: gymnasium.Space[Any], mode: AutoresetMode) -> None:
        self.metadata = {"autoreset_mode": mode}
        self._env, self.num_envs = env, int(env.num_envs)
        self.single_observation_space, self.single_action_space = obs, actions
        self.observation_space, self.action_space = (batch_space(space, self.num_envs) for space in (obs, actions))

    def _tensor(self, actions: Any, device: str) -> torch.Tensor:
        """actions: [N, A]"""
        return torch.as_tensor(np.asarray(actions), dtype=torch.float32, device=device)

    def close_extras(self, **kwargs: Any) -> None:
        """End the simulation where it can be ended."""
        if close := getattr(self._env, "close", None):
            close()


class IsaacLabEnv(TensorEnv):
    """Isaac Lab's env: a step that ends an episode returns the first observation of the next one.

    Observations are a Dict of groups, as Isaac Lab has them: ``policy``, and where the task has it ``critic``.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.single_observation_space, env.single_action_space, AutoresetMode.SAME_STEP)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of each."""
        obs, _ = self._env.reset(seed=seed if isinstance(seed, int) or seed is None else seed[0])
        return _read(self.single_observation_space, obs), {}

    def step(self, actions: Any) -> Steps:
        """Step each."""
        obs, rewards, terminated, truncated, _ = self._env.step(self._tensor(actions, self._env.device))
        read = _read(self.single_observation_space, obs)
        return read, _copied(rewards), _copied(terminated), _copied(truncated), {}


class IsaacGymEnv(TensorEnv):
    """Isaac Gym's env: the step after an end resets, so that the last observation of an episode is seen.

    Observations are those of ``obs``; ``states``, for a critic, are left out. Only ``make`` takes a seed.
    """

    def __init__(self, env: Any) -> None:
        # Its spaces are of the older package gym.
        obs, actions = (
            gymnasium.spaces.Box(space.low, space.high, dtype=np.float32)
            for space in (env.observation_space, env.action_space)
        )
        super().__init__(env, obs, actions, AutoresetMode.NEXT_STEP)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of each: the task's own ``reset`` computes no observation, the next step does."""
        self._env.reset()
        self._env.reset_buf[:] = 1
        return self.step(np.zeros((self.num_envs, *(self.single_action_space.shape or ())), np.float32))[0], {}

    def step(self, actions: Any) -> Steps:
        """Step each, or reset those that have ended with the step before."""
        obs, rewards, ended, infos = self._env.step(self._tensor(actions, self._env.rl_device))
        ends = _copied(ended).astype(bool)
        truncated = ends & _copied(infos["time_outs"]).astype(bool) if "time_outs" in infos else np.zeros_like(ends)
        return _read(self.single_observation_space, obs["obs"]), _copied(rewards), ends & ~truncated, truncated, {}
