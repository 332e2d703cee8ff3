"""Gymnasium's MuJoCo tasks, versions 5 and 4.

Two layers of 256 and the discounts, lambdas and deviations below are those that rl-baselines3-zoo found task by task,
but for Ant, where they were measured here; the rest is what learned most on HalfCheetah and Hopper in
docs/task_defaults.md, with a rate that falls to 0.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .registered import PPO, RegisteredFamily

if TYPE_CHECKING:
    import gymnasium

_log = logging.getLogger(__name__)

_COMMON = {
    **PPO,
    "encoder_mlp_layers": (256, 256),
    "exploration_loss_coeff": 0.0,
    "lr_schedule": "linear_decay",
    "train_for_env_steps": 1_000_000,
}

_OWN: dict[str, dict[str, object]] = {
    # With larger deviations it learns to run on its back. Hopper learns less with smaller ones.
    "HalfCheetah": {"gamma": 0.98, "gae_lambda": 0.92, "initial_stddev": 0.135, "train_for_env_steps": 5_000_000},
    "Hopper": {},
    "Walker2d": {"train_for_env_steps": 2_000_000},
    # With a deviation by state, exploration fades: seed 1 had a return of 1,350 after 1M steps, with rates of 1e-4 and
    # less. With one for all states it had 1,770 in one run after 1M, and 4,770 in another after 5M.
    "Ant": {
        "adaptive_stddev": False,
        "initial_stddev": 0.5,
        "learning_rate": 3e-4,
        "train_for_env_steps": 5_000_000,
    },
    "Humanoid": {"gamma": 0.95, "gae_lambda": 0.9, "train_for_env_steps": 10_000_000},
    "HumanoidStandup": {"gae_lambda": 0.9, "train_for_env_steps": 10_000_000},
    "InvertedPendulum": {},
    "InvertedDoublePendulum": {"gamma": 0.98, "gae_lambda": 0.8},
    # Swimming pays after many strokes.
    "Swimmer": {"gamma": 0.9999},
    "Reacher": {"gamma": 0.9, "gae_lambda": 1.0},
    "Pusher": {"train_for_env_steps": 2_000_000},
}

# What MuJoCo 4 warns of in Gymnasium's HalfCheetah, about which a user can do nothing.
_OF_GYMNASIUM = "'settotalmass' is deprecated"


@dataclass(frozen=True)
class MuJoCo(RegisteredFamily):
    """The env family of MuJoCo. What it warns of goes to the log; else it writes a file into the current folder."""

    def make(self, env_name: str, **kwargs: object) -> gymnasium.Env[Any, Any]:
        """The environment as Gymnasium registers it."""
        import mujoco

        mujoco.set_mju_user_warning(_warn)
        return super().make(env_name, **kwargs)


def _warn(text: str) -> None:
    if _OF_GYMNASIUM not in text:
        _warn_once(text.partition(" Time = ")[0])


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("MuJoCo: %s", text)


FAMILY = MuJoCo(
    "mujoco",
    # Pusher-v4 cannot be made with a MuJoCo of today.
    {
        f"{task}-{version}": {**_COMMON, **own}
        for version in ("v5", "v4")
        for task, own in _OWN.items()
        if (task, version) != ("Pusher", "v4")
    },
    modules=("mujoco",),
    extra="mujoco",
    rows={
        "HalfCheetah-v5": ("halfcheetah", "halfcheetah_5m"),
        "Hopper-v5": ("hopper",),
        "Walker2d-v5": ("walker2d",),
        "Ant-v5": ("ant",),
        "InvertedPendulum-v5": ("inverted_pendulum",),
    },
)
