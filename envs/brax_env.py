"""Steps N envs of Brax in one call of JAX, and hands arrays over as tensors by DLPack, without a copy."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import torch
from torch import Tensor

from sfactory.env.tensor_env import TensorEnv, TensorStep
from sfactory.errors import EnvError
from sfactory.packages import pip_install


class BraxEnv(TensorEnv):
    """N envs in NEXT_STEP mode. Each begins every episode in the same state, as with Brax's own wrapper for training.

    Statistics of an episode are the sums of Brax's metrics.
    """

    def __init__(
        self, name: str, num_envs: int, device: str, episode_length: int, options: Mapping[str, object]
    ) -> None:
        """``options``: arguments of ``brax.envs.get_environment``. Raises EnvError if Brax has no such env."""
        self._jax: Any = importlib.import_module("jax")
        envs: Any = importlib.import_module("brax.envs")
        try:
            env = envs.get_environment(name, **options)
        except KeyError as error:
            raise EnvError(
                f"--env=brax:{name}: Brax has no env of this name ({error}); it has {_known(envs)}"
            ) from None
        if not isinstance(env.observation_size, int):
            raise EnvError(f"--env=brax:{name}: its observations are several arrays; only one array is supported")
        self.num_envs, self.device = num_envs, torch.device(device)
        self._place = self._jax_device(name)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (env.observation_size,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)
        reset = self._jax.vmap(env.reset)
        self._reset = self._jax.jit(lambda keys: _strong(self._jax, reset(keys)))
        self._step = self._jax.jit(_stepping(self._jax, env, episode_length))

    def reset(self, seed: int) -> Tensor:
        """See TensorEnv."""
        random = self._jax.random
        keys = self._jax.device_put(random.split(random.PRNGKey(seed % 2**32), self.num_envs), self._place)
        first = self._reset(keys)
        zeros = self._jax.numpy.zeros_like
        time, over = zeros(first.reward, dtype=int), zeros(first.reward, dtype=bool)
        sums = {name: zeros(values) for name, values in first.metrics.items()}
        # What was put on a device is of another kind for JAX than what merely is there, and would be compiled apart.
        self._carried = self._jax.device_put((first, time, over, sums), self._place)
        self._first = self._carried[0]
        return self._tensor(first.obs)

    def step(self, actions: Tensor) -> TensorStep:
        """See TensorEnv."""
        # With this JAX waits, on the device, for what torch has read of the last step: only then it may use the memory
        # of that again.
        given = self._jax.dlpack.from_dlpack(actions.contiguous())
        self._carried, self._shown = self._step(self._first, self._carried, given)
        obs, rewards, terminated, truncated, sums = self._shown
        tensor = self._tensor
        stats = {name: tensor(values) for name, values in sums.items()}
        return TensorStep(tensor(obs), tensor(rewards), tensor(terminated), tensor(truncated), stats=stats)

    def _jax_device(self, name: str) -> Any:
        """JAX's name of the device."""
        if self.device.type == "cpu":
            return self._jax.devices("cpu")[0]
        try:
            return self._jax.devices("gpu")[self.device.index or 0]
        except (RuntimeError, IndexError) as error:
            raise EnvError(
                f"--env=brax:{name}: JAX does not find the GPU of --device ({error}); install JAX for CUDA, "
                f"{pip_install()} 'jax[cuda12]', or use --device=cpu"
            ) from None

    @staticmethod
    def _tensor(array: Any) -> Tensor:
        """The memory of ``array`` as a tensor, which keeps it."""
        tensor: Tensor = torch.utils.dlpack.from_dlpack(array)
        return tensor


def _stepping(jax: Any, env: Any, episode_length: int) -> Any:
    """A function of (first states, (states, time, over, sums), actions) for jax.jit; see ``BraxEnv.step``."""
    numpy, step = jax.numpy, jax.vmap(env.step)

    def where(mask: Any, one: Any, other: Any) -> Any:
        """Of nested arrays [N, ...]: ``one`` where ``mask`` [N] holds."""

        def choose(a: Any, b: Any) -> Any:
            return numpy.where(mask.reshape(mask.shape + (1,) * (b.ndim - 1)), a, b)

        return jax.tree_util.tree_map(choose, one, other)

    def advance(first: Any, carried: Any, actions: Any) -> Any:
        states, time, over, sums = carried
        moved = step(states, actions)
        begun = moved.replace(
            pipeline_state=where(over, first.pipeline_state, moved.pipeline_state),
            obs=where(over, first.obs, moved.obs),
            reward=numpy.where(over, 0.0, moved.reward),
            done=numpy.where(over, 0.0, moved.done),
            metrics=where(over, first.metrics, moved.metrics),
        )
        time = numpy.where(over, 0, time + 1)
        sums = {name: numpy.where(over, 0.0, sums[name] + begun.metrics[name]) for name in sums}
        terminated = begun.done > 0.5
        truncated = (time >= episode_length) & ~terminated
        shown = begun.obs, begun.reward, terminated, truncated, sums
        return (_strong(jax, begun), time, terminated | truncated, sums), shown

    return advance


def _strong(jax: Any, state: Any) -> Any:
    """``state`` with dtypes that are no longer "weak", as those of Python's numbers: others are compiled again."""
    return jax.tree_util.tree_map(lambda array: array.astype(array.dtype), state)


def _known(envs: Any) -> str:
    return ", ".join(sorted(getattr(envs, "_envs", {})))
