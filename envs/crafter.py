"""Crafter (Hafner 2021), named ``crafter_reward``, and ``crafter_no_reward`` without rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from .registered import RegisteredFamily

if TYPE_CHECKING:
    import gymnasium

# By name, whether there are rewards.
_NAMES: Mapping[str, bool] = {"crafter_reward": True, "crafter_no_reward": False}

# Discount, lambda, rate, passes and minibatches of a dataset of 4096 steps: Moon et al. 2023 ("Discovering hierarchical
# achievements in reinforcement learning via contrastive learning"). The network is smaller than theirs, for CPUs.
_DEFAULTS: Mapping[str, object] = {
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "worker_num_splits": 2,
    "rollout": 256,
    "batch_size": 512,
    "num_batches_per_epoch": 8,
    "num_epochs": 3,
    "num_batches_to_accumulate": 0,
    "with_vtrace": False,
    "shuffle_minibatches": True,
    "gamma": 0.95,
    "gae_lambda": 0.65,
    "ppo_clip_ratio": 0.2,
    "encoder_conv_architecture": "convnet_atari",
    "encoder_conv_mlp_layers": (256,),
    "nonlinearity": "relu",
    "obs_scale": 255.0,
    "normalize_input": False,
    "learning_rate": 3e-4,
    "adam_eps": 1e-5,
    "max_grad_norm": 0.5,
    "exploration_loss_coeff": 0.01,
    "train_for_env_steps": 1_000_000,
}


@dataclass(frozen=True)
class Crafter(RegisteredFamily):
    """The env family of Crafter."""

    own_wrappers: ClassVar[Mapping[str, str]] = MappingProxyType({"max_episode_steps": "length"})

    def make(self, env_name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """The world; ``kwargs``: those of crafter.Env, such as area, view and length."""
        from .crafter_env import CrafterEnv

        return CrafterEnv(**{"reward": _NAMES[env_name], **kwargs})


FAMILY = Crafter("crafter", dict.fromkeys(_NAMES, _DEFAULTS), modules=("crafter",), extra="crafter")
