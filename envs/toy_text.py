"""Gymnasium's toy text tasks: small tables of states.

The entropy bonus is that by kind of task, "table", which learned FrozenLake and Taxi in docs/task_defaults.md. A small
network with few, large minibatches and a high rate that falls to 0 takes less time for as much.
"""

from __future__ import annotations

from .registered import LARGE_MINIBATCHES, PPO, RegisteredFamily

# What is learned in one state says nothing of the others, so each has to be explored.
_COMMON = {
    **PPO,
    **LARGE_MINIBATCHES,
    "num_epochs": 4,
    "learning_rate": 2e-3,
    "lr_schedule": "linear_decay",
    "exploration_loss_coeff": 0.05,
}

FAMILY = RegisteredFamily(
    "toy_text",
    {
        task: {**_COMMON, "train_for_env_steps": steps}
        for task, steps in {
            "FrozenLake-v1": 200_000,
            "FrozenLake8x8-v1": 500_000,
            "Taxi-v4": 1_000_000,
            "CliffWalking-v1": 200_000,
            "CliffWalkingSlippery-v1": 500_000,
            "Blackjack-v1": 200_000,
        }.items()
    },
    rows={"FrozenLake-v1": ("frozenlake",), "Taxi-v4": ("taxi",)},
)
