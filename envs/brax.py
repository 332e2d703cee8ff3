"""Makes the envs of Brax as TensorEnvs, named ``brax:NAME``: JAX simulates all of them at once, on a CPU or a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .registered import PrefixedFamily

if TYPE_CHECKING:
    from sfactory.env.tensor_env import TensorEnv

_TASKS = (
    "ant",
    "fast",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_double_pendulum",
    "inverted_pendulum",
    "pusher",
    "reacher",
    "swimmer",
    "walker2d",
)
# A rollout of all envs in a dataset, and the network, passes and discount that walking robots have elsewhere.
_DEFAULTS: Mapping[str, object] = {
    "num_envs_per_worker": 1_024,
    "rollout": 16,
    "batch_size": 4_096,
    "num_batches_per_epoch": 4,
    "num_epochs": 4,
    "with_vtrace": False,
    "shuffle_minibatches": True,
    "ppo_clip_ratio": 0.2,
    "encoder_mlp_layers": (256, 128, 64),
    "gamma": 0.97,
    "learning_rate": 3e-4,
    "max_grad_norm": 1.0,
    "exploration_loss_coeff": 0.001,
    "train_for_env_steps": 20_000_000,
}


@dataclass(frozen=True)
class Brax(PrefixedFamily):
    """The env family of what Brax registers."""

    makes_tensors: bool = True

    def make(
        self, env_name: str, *, num_envs: int, device: str, episode_length: int = 1000, **kwargs: Any
    ) -> TensorEnv:
        """``num_envs`` of them on ``device``. episode_length: steps after which an episode is truncated.

        kwargs: those of ``brax.envs.get_environment``, such as ``backend``. Raises EnvError if there is no such env.
        """
        # Otherwise JAX takes three quarters of a GPU's memory, of which the network needs a part.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        from .brax_env import BraxEnv

        return BraxEnv(env_name.removeprefix(self.prefix), num_envs, device, episode_length, kwargs)


FAMILY = Brax("brax", "brax:", _TASKS, _DEFAULTS, modules=("brax", "jax"), extra="brax")
