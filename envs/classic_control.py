"""Gymnasium's classic control tasks, and ``cartpole_without_velocities``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .registered import LARGE_MINIBATCHES, PPO, RegisteredFamily

if TYPE_CHECKING:
    import gymnasium

# Small networks and cheap steps: many envs per process, large batches, a few seconds to minutes of training.
_COMMON: Mapping[str, object] = MappingProxyType(
    {
        **LARGE_MINIBATCHES,
        "num_workers": 2,
        "num_envs_per_worker": 32,
        "worker_num_splits": 2,
        "rollout": 32,
        "num_epochs": 2,
        "ppo_clip_ratio": 0.2,
        "nonlinearity": "tanh",
        "normalize_input": False,
        "normalize_returns": False,
        "learning_rate": 2e-3,
        "gamma": 0.99,
        "exploration_loss_coeff": 0.01,
        "train_for_env_steps": 500_000,
        "experiment_summaries_interval": 1.0,
        "report_interval_sec": 2.0,
        "save_best_every_sec": 0.25,
        "save_best_after": 20_000,
    }
)

_HIDDEN_CART_POLE = "cartpole_without_velocities"

# Returns reach 500: scaled, the value loss stays near 1 and leaves the clipped gradient to the policy as well. A rate
# that falls to 0 keeps the newest policy as good as the best.
_CART_POLE = {"reward_scale": 0.05, "num_epochs": 4, "lr_schedule": "linear_decay"}
# The same task to be solved from memory: velocities follow from the last observations.
_HIDDEN = {**_CART_POLE, "use_rnn": True, "rnn_type": "gru", "rnn_size": 64, "train_for_env_steps": 1_000_000}
# Rewards of -1 a step (or down to -16) make returns of hundreds below zero: scaled, the value loss stays near 1.
_ACROBOT = {
    "train_for_env_steps": 1_000_000,
    "reward_scale": 0.1,
    "exploration_loss_coeff": 0.001,
    "num_epochs": 4,
    "lr_schedule": "linear_decay",
}
_MOUNTAIN_CAR = {"train_for_env_steps": 3_000_000, "gamma": 0.999, "reward_scale": 0.1, "exploration_loss_coeff": 0.02}
_CONTINUOUS_CAR = {"train_for_env_steps": 3_000_000, "gamma": 0.999, "reward_scale": 0.1, "adaptive_stddev": False}
# Each step pays for itself alone, so a short horizon and many passes over few steps.
_PENDULUM = {
    **PPO,
    "encoder_mlp_layers": (64, 64),
    "reward_scale": 0.1,
    "adaptive_stddev": False,
    "num_epochs": 10,
    "learning_rate": 1e-3,
    "lr_schedule": "linear_decay",
    "gamma": 0.9,
    "exploration_loss_coeff": 0.0,
    "train_for_env_steps": 300_000,
}

_OWN_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "CartPole-v1": _CART_POLE,
        "CartPole-v0": _CART_POLE,
        _HIDDEN_CART_POLE: _HIDDEN,
        "Acrobot-v1": _ACROBOT,
        "MountainCar-v0": _MOUNTAIN_CAR,
        "MountainCarContinuous-v0": _CONTINUOUS_CAR,
        "Pendulum-v1": _PENDULUM,
    }
)


@dataclass(frozen=True)
class ClassicControl(RegisteredFamily):
    """The env family of CartPole, Acrobot, MountainCar and Pendulum, and of CartPole without velocities."""

    def make(self, env_name: str, **kwargs: object) -> gymnasium.Env[Any, Any]:
        """The environment as Gymnasium registers it, or CartPole-v1 without velocities."""
        if env_name != _HIDDEN_CART_POLE:
            return super().make(env_name, **kwargs)
        from .cartpole_without_velocities import CartPoleWithoutVelocities

        return CartPoleWithoutVelocities(super().make("CartPole-v1", **kwargs))


FAMILY = ClassicControl(
    "classic_control",
    {name: {**_COMMON, **own} for name, own in _OWN_DEFAULTS.items()},
    rows={
        "CartPole-v1": ("cartpole",),
        _HIDDEN_CART_POLE: ("hidden_cartpole",),
        "Acrobot-v1": ("acrobot",),
        "Pendulum-v1": ("pendulum",),
    },
)
