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
from pathlib import Path

sys.path.insert(0, os.getcwd())
sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

import envs
from scripts.sb3_rows import Curve

EPISODES = 100
EVERY_S = 0.1
ENDLESS = 10**9


def print_score(steps: int, seconds: float, mean: float) -> None:
    """The line for time_to_score.py."""
    print("SCORE", json.dumps({"mean": mean, "train_s": seconds, "env_steps": steps}), flush=True)


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
    model.learn(ENDLESS, callback=Curve(print_score, EVERY_S, EPISODES))


if __name__ == "__main__":
    main()
