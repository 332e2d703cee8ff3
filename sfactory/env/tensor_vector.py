"""Hosts a ``TensorEnv`` as a vector env of Gymnasium, with arrays in host memory.

So that whatever plays single envs and vector envs, such as ``sfactory.enjoy`` and ``sfactory.check_env``, can play it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor

from sfactory.env.conversion import tree_of
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
            return self._shown(self._env.reset(self._seed)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every env."""
        device = self._env.device

        def to_device(_: spaces.Space[Any], array: Any) -> Tensor:
            return torch.tensor(np.asarray(array), device=device)

        with torch.no_grad():
            step = self._env.step(tree_of(self.single_action_space, to_device, actions))
        ended = _to_host(step.terminated | step.truncated)
        stats = {name: _to_host(values) for name, values in step.stats.items()} if ended.any() else {}
        infos: dict[str, Any] = {}
        if stats:
            given = {name: part for key, values in stats.items() for name, part in ((key, values), (f"_{key}", ended))}
            infos = {"episode_extra_stats": given, "_episode_extra_stats": ended}
        if infos and self.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP:
            infos = {"final_info": infos, "_final_info": ended}
        return self._shown(step.obs), _to_host(step.rewards), _to_host(step.terminated), _to_host(step.truncated), infos

    def close(self, **kwargs: Any) -> None:
        """Close the TensorEnv."""
        self._env.close()

    def _shown(self, obs: Any) -> Any:
        return tree_of(self.single_observation_space, lambda _, leaf: _to_host(leaf), obs)


def _to_host(tensor: Tensor) -> Any:
    """A copy in host memory, which the env does not overwrite."""
    return tensor.detach().cpu().numpy().copy()
