"""Names of Procgen's games, which EnvPool makes, and defaults of flags for them: ``envpool:CoinrunEasy-v0``.

The package procgen itself has no wheels for the Pythons that sfactory runs on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_GAMES = (
    *("Bigfish", "Bossfight", "Caveflyer", "Chaser", "Climber", "Coinrun", "Dodgeball", "Fruitbot"),
    *("Heist", "Jumper", "Leaper", "Maze", "Miner", "Ninja", "Plunder", "Starpilot"),
)
_MODES: Mapping[str, Sequence[str]] = {
    "Easy": _GAMES,
    "Hard": _GAMES,
    "Memory": ("Caveflyer", "Dodgeball", "Heist", "Jumper", "Maze", "Miner"),
    "Exploration": ("Caveflyer", "Climber", "Coinrun", "Heist", "Jumper", "Leaper", "Maze", "Ninja"),
    "Extreme": ("Chaser", "Dodgeball", "Leaper", "Starpilot"),
}

# PPO of Cobbe et al. 2020 ("Leveraging procedural generation to benchmark reinforcement learning"): 64 envs, 256 steps
# of each, 8 minibatches, 3 passes, the deep network of IMPALA, returns scaled.
DEFAULTS: Mapping[str, object] = {
    "num_workers": 2,
    "num_envs_per_worker": 32,
    "worker_num_splits": 2,
    "rollout": 256,
    "batch_size": 2048,
    "num_batches_per_epoch": 8,
    "num_epochs": 3,
    "num_batches_to_accumulate": 0,
    "with_vtrace": False,
    "shuffle_minibatches": True,
    "gamma": 0.999,
    "gae_lambda": 0.95,
    "ppo_clip_ratio": 0.2,
    "encoder_conv_architecture": "resnet_impala",
    "encoder_conv_mlp_layers": (256,),
    # On a CPU with units for bfloat16 it learns from 1.8 times as many steps a second.
    "amp": "auto",
    "nonlinearity": "relu",
    "obs_scale": 255.0,
    "normalize_input": False,
    "normalize_returns": True,
    "learning_rate": 5e-4,
    "adam_eps": 1e-5,
    "max_grad_norm": 0.5,
    "exploration_loss_coeff": 0.01,
    "train_for_env_steps": 25_000_000,
}

IDS = tuple(f"{game}{mode}-v0" for mode, games in _MODES.items() for game in games)
