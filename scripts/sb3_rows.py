"""Trains rows of docs/results.md with Stable-Baselines3's PPO and the settings of RL Zoo, for the minutes beside ours.

It runs in SB3's own environment, with the envs' packages:

    pip install stable-baselines3 "gymnasium[box2d,mujoco]" minigrid
    python scripts/sb3_rows.py lunarlander hopper --seeds 1
    python scripts/sb3_rows.py parity_halfcheetah parity_hopper parity_lunarlander --seeds 5

The second line has SB3's own defaults in place of RL Zoo's settings, for the comparison with the same settings here
(docs/examples/sb3_ppo.yaml). Each row has a CSV in docs/results/sb3, as those of scripts/reproduce.py, and a JSON with
the settings and the versions of packages, written after each seed.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/sb3"
EVERY_S = 0.5
_NETWORK = {"log_std_init": -2, "ortho_init": False, "activation_fn": torch.nn.ReLU, "net_arch": [256, 256]}


class Task(NamedTuple):
    """A row as RL Zoo trains it (hyperparams/ppo.yml), unless its settings are _DEFAULTS.

    flat: observations through MiniGrid's FlatObsWrapper.
    """

    env: str
    steps: int
    envs: int
    settings: Mapping[str, Any]
    normalize: bool = False
    flat: bool = False


def _falling(start: float) -> Any:
    """A value that falls linearly to 0, by the share of the training that is left."""
    return lambda left: left * start


_DEFAULTS = {"n_steps": 256, "batch_size": 256}  # all else is PPO's own: ten passes, a rate of 3e-4
TASKS = {
    **{
        f"parity_{name}": Task(env, 1_000_000, 8, _DEFAULTS, normalize=True)
        for name, env in (("halfcheetah", "HalfCheetah-v5"), ("hopper", "Hopper-v5"), ("lunarlander", "LunarLander-v3"))
    },
    "cartpole": Task(
        "CartPole-v1",
        100_000,
        8,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
        },
    ),
    "acrobot": Task(
        "Acrobot-v1",
        500_000,
        16,
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
        normalize=True,
    ),
    "pendulum": Task(
        "Pendulum-v1",
        100_000,
        4,
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    ),
    "lunarlander": Task(
        "LunarLander-v3",
        1_000_000,
        16,
        {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
    ),
    "doorkey": Task(
        "MiniGrid-DoorKey-5x5-v0",
        100_000,
        8,
        {
            "n_steps": 128,
            "batch_size": 64,
            "gae_lambda": 0.95,
            "gamma": 0.99,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 2.5e-4,
            "clip_range": 0.2,
        },
        normalize=True,
        flat=True,
    ),
    "hopper": Task(
        "Hopper-v5",
        1_000_000,
        1,
        {
            "batch_size": 32,
            "n_steps": 512,
            "gamma": 0.999,
            "learning_rate": 9.80828e-05,
            "ent_coef": 0.00229519,
            "clip_range": 0.2,
            "n_epochs": 5,
            "gae_lambda": 0.99,
            "max_grad_norm": 0.7,
            "vf_coef": 0.835671,
            "policy_kwargs": _NETWORK,
        },
        normalize=True,
    ),
    "halfcheetah": Task(
        "HalfCheetah-v5",
        1_000_000,
        1,
        {
            "batch_size": 64,
            "n_steps": 512,
            "gamma": 0.98,
            "learning_rate": 2.0633e-05,
            "ent_coef": 0.000401762,
            "clip_range": 0.1,
            "n_epochs": 20,
            "gae_lambda": 0.92,
            "max_grad_norm": 0.8,
            "vf_coef": 0.58096,
            "policy_kwargs": _NETWORK,
        },
        normalize=True,
    ),
}
# Of the settings, those that RL Zoo lets fall to 0.
_FALL = {"cartpole": ("learning_rate", "clip_range")}


class Curve(BaseCallback):  # type: ignore[misc]
    """Gives ``note`` the env steps, the seconds since the first step, and the mean return of the last 100 episodes.

    It does so every ``every_s`` seconds, once ``least_episodes`` have ended, and at the end of training.
    """

    def __init__(self, note: Callable[[int, float, float], None], every_s: float, least_episodes: int = 1) -> None:
        super().__init__()
        self._note, self._every_s, self._least_episodes = note, every_s, least_episodes
        self._since = self._noted = 0.0

    def _on_training_start(self) -> None:
        self._since = self._noted = time.monotonic()

    def _on_step(self) -> bool:
        now = time.monotonic()
        if now - self._noted >= self._every_s and len(self.model.ep_info_buffer) >= self._least_episodes:
            self._noted = now
            self._give()
        return True

    def _on_training_end(self) -> None:
        self._give()

    def _give(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        self._note(int(self.num_timesteps), time.monotonic() - self._since, float(sum(returns)) / len(returns))


def learn(name: str, seed: int) -> list[tuple[int, float, float]]:
    """The curve of a row's seed: env steps, minutes since the first step, and returns."""
    points: list[tuple[int, float, float]] = []

    def note(steps: int, seconds: float, mean: float) -> None:
        points.append((steps, round(seconds / 60, 4), round(mean, 4)))

    task = TASKS[name]
    wrapper = None
    if task.flat:
        wrapper = importlib.import_module("minigrid.wrappers").FlatObsWrapper
    vector = make_vec_env(task.env, n_envs=task.envs, seed=seed, wrapper_class=wrapper)
    if task.normalize:
        vector = VecNormalize(vector, gamma=task.settings.get("gamma", 0.99))
    settings = {key: _falling(value) if key in _FALL.get(name, ()) else value for key, value in task.settings.items()}
    PPO("MlpPolicy", vector, device="cpu", seed=seed, **settings).learn(task.steps, callback=Curve(note, EVERY_S))
    return points


def facts_of(name: str, alone: bool) -> dict[str, Any]:
    """The settings of a row, and the versions."""
    packages = ("stable-baselines3", "torch", "numpy", "gymnasium")
    task = TASKS[name]
    asked = {**task._asdict(), "settings": {**task.settings, "falling": list(_FALL.get(name, ()))}}
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
        **asked,
        **({} if alone else {"alone": False}),
    }


def main() -> None:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 1 on")
    parser.add_argument("--threads", type=int, default=1, help="of torch: one is as fast as two for such networks")
    parser.add_argument("--beside", action="store_true", help="other work runs meanwhile: marks the minutes")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if any(TASKS[name].flat for name in given.row):
        gymnasium.register_envs(importlib.import_module("minigrid"))
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in given.row:
        lines: list[tuple[int | str, ...]] = [("seed", "env_steps", "minutes", "return")]
        for seed in range(1, given.seeds + 1):
            points = learn(name, seed)
            lines += [(seed, *map(str, point)) for point in points]
            print(f"{name}, seed {seed}: {points[-1][2]} after {points[-1][1]:.2f} min", flush=True)
            with (RESULTS / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(lines)
            facts = facts_of(name, alone=not given.beside)
            (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
