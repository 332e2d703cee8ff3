"""Hosts a ``TensorEnv`` as a vector env of Gymnasium, with arrays in host memory.

So that whatever plays single envs and vector envs, such as ``sfactory.enjoy`` and ``sfactory.check_env``, can play it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor

from sfactory.env.tensor_env import TensorEnv, require_autoreset


class TensorVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A TensorEnv with numpy arrays instead of tensors. ``reset`` without a seed uses the next of a sequence."""

    def __init__(self, env: TensorEnv) -> None:
        self._env, self._seed = env, 0
        self.num_envs = env.num_envs
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": require_autoreset(env)}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env. seed: a number; of a list of them the first."""
        given = seed[0] if isinstance(seed, list | tuple) else seed
        self._seed = self._seed + 1 if given is None else int(given)
        with torch.no_grad():
            return _mapped(self.single_observation_space, self._env.reset(self._seed), _to_host), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every env."""
        device = self._env.device

        def to_device(array: Any) -> Tensor:
            return torch.tensor(np.asarray(array), device=device)

        with torch.no_grad():
            step = self._env.step(_mapped(self.single_action_space, actions, to_device))
        ended = _to_host(step.terminated | step.truncated)
        obs = _mapped(self.single_observation_space, step.obs, _to_host)
        stats = {name: _to_host(values) for name, values in step.stats.items()} if ended.any() else {}
        infos: dict[str, Any] = {}
        if stats:
            given = {name: part for key, values in stats.items() for name, part in ((key, values), (f"_{key}", ended))}
            infos = {"episode_extra_stats": given, "_episode_extra_stats": ended}
        if infos and self.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP:
            infos = {"final_info": infos, "_final_info": ended}
        return obs, _to_host(step.rewards), _to_host(step.terminated), _to_host(step.truncated), infos

    def close(self, **kwargs: Any) -> None:
        """Close the TensorEnv."""
        self._env.close()


def _mapped(space: spaces.Space[Any], values: Any, change: Callable[[Any], Any]) -> Any:
    """``values``, in the structure of ``space``, with ``change`` for each leaf."""
    if isinstance(space, spaces.Dict):
        return {name: _mapped(child, values[name], change) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_mapped(child, value, change) for child, value in zip(space.spaces, values, strict=True))
    return change(values)


def _to_host(tensor: Tensor) -> Any:
    """A copy in host memory, which the env does not overwrite."""
    return tensor.detach().cpu().numpy().copy()
