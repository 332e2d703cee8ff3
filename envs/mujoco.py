"""Gymnasium's MuJoCo tasks, versions 5 and 4.

Two layers of 256 and the discounts and lambdas below are those that rl-baselines3-zoo found task by task; the rest is
what learned most on HalfCheetah and Hopper in docs/task_defaults.md, with a rate that falls to 0.
"""

from __future__ import annotations

from .registered import PPO, RegisteredFamily

_COMMON = {
    **PPO,
    "encoder_mlp_layers": (256, 256),
    "exploration_loss_coeff": 0.0,
    "lr_schedule": "linear_decay",
    "train_for_env_steps": 1_000_000,
}

_OWN: dict[str, dict[str, object]] = {
    "HalfCheetah": {"gamma": 0.98, "gae_lambda": 0.92, "train_for_env_steps": 5_000_000},
    "Hopper": {},
    "Walker2d": {"train_for_env_steps": 2_000_000},
    "Ant": {"train_for_env_steps": 5_000_000},
    "Humanoid": {"gamma": 0.95, "gae_lambda": 0.9, "train_for_env_steps": 10_000_000},
    "HumanoidStandup": {"gae_lambda": 0.9, "train_for_env_steps": 10_000_000},
    "InvertedPendulum": {},
    "InvertedDoublePendulum": {"gamma": 0.98, "gae_lambda": 0.8},
    # Swimming pays after many strokes.
    "Swimmer": {"gamma": 0.9999},
    "Reacher": {"gamma": 0.9, "gae_lambda": 1.0},
    "Pusher": {"train_for_env_steps": 2_000_000},
}

FAMILY = RegisteredFamily(
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
)
