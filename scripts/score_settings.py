"""Settings with which time_to_score.py has CartPole learned. It has no command of its own.

Networks are the same for all (64x64, tanh), and what is learned is the same return: rewards are only scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from scripts.peers import FEED_FORWARD, SAMPLE_FACTORY_FLAGS
from scripts.workloads import CART_POLE_IN_BENCH, PLAIN, SMALL, WIDE


@dataclass(frozen=True)
class Settings:
    """Flags of sfactory and of Sample Factory, and what SB3's PPO is given for so many envs."""

    ours: str
    sample_factory: str
    sb3_envs: int
    sb3: Mapping[str, object]


# What decides on learning, apart from sizes, is the same for the two: it is that of sfactory's own CartPole.
_LEARNING = (
    "--learning_rate=2e-3 --reward_scale=0.05 --gamma=0.99 --exploration_loss_coeff=0.01 --ppo_clip_ratio=0.2 "
    "--num_epochs=2"
)
_OURS = f"{CART_POLE_IN_BENCH} {PLAIN} --num_workers=2 {SMALL} {_LEARNING}"
_SAMPLE_FACTORY = f"{SAMPLE_FACTORY_FLAGS} {FEED_FORWARD} {SMALL} {_LEARNING}"

SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "speed": Settings(
            ours=f"{_OURS} {WIDE}",
            sample_factory=f"{_SAMPLE_FACTORY} --num_envs_per_worker=256 --batch_size=16384",
            sb3_envs=1024,
            sb3={"n_steps": 16, "batch_size": 16384, "n_epochs": 2, "learning_rate": 2e-3, "ent_coef": 0.01},
        ),
        "learning": Settings(
            ours=f"{_OURS} --num_envs_per_worker=32 --batch_size=1024 --num_batches_per_epoch=2",
            sample_factory=f"{_SAMPLE_FACTORY} --num_envs_per_worker=16 --batch_size=1024 --normalize_returns=False",
            # As tuned for CartPole-v1 in RL Baselines3 Zoo, its schedules (linear to 0) left out: they need an end.
            sb3_envs=8,
            sb3={
                "n_steps": 32,
                "batch_size": 256,
                "n_epochs": 20,
                "gae_lambda": 0.8,
                "gamma": 0.98,
                "ent_coef": 0.0,
                "learning_rate": 1e-3,
                "clip_range": 0.2,
            },
        ),
    }
)
