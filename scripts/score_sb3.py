"""Stable-Baselines3's PPO on CartPole of the bench folder, with its score during training. Run by time_to_score.py.

It runs in SB3's own environment, from the bench folder; the arguments of PPO are one JSON object:

    cd BENCH && PEERS/sb/bin/python scripts/score_sb3.py --envs 8 --seed 1 '{"n_steps": 32, "batch_size": 256}'

Each line ``SCORE {...}`` on stdout holds the mean return of the last 100 episodes and the seconds of training.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.getcwd())

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

import envs

EPISODES = 100
EVERY_S = 0.1
ENDLESS = 10**9


class ScoreReporter(BaseCallback):  # type: ignore[misc]
    """Tells the score. Training begins with the first step."""

    def __init__(self) -> None:
        super().__init__()
        self._since = self._printed = 0.0

    def _on_training_start(self) -> None:
        self._since = self._printed = time.monotonic()

    def _on_step(self) -> bool:
        now = time.monotonic()
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if now - self._printed >= EVERY_S and len(returns) == EPISODES:
            self._printed = now
            score = {"mean": float(sum(returns)) / EPISODES, "train_s": now - self._since}
            print("SCORE", json.dumps({**score, "env_steps": int(self.num_timesteps)}), flush=True)
        return True


def main() -> None:
    """Train until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("settings", type=json.loads)
    given = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    vector = VecMonitor(DummyVecEnv([lambda: envs.make("cartpole")] * given.envs))
    network = {"net_arch": [64, 64]}
    model = PPO("MlpPolicy", vector, device="cpu", seed=given.seed, policy_kwargs=network, **given.settings)
    model.learn(ENDLESS, callback=ScoreReporter())


if __name__ == "__main__":
    main()
