"""Every legal space is learned with default flags: tables of known optimum, and bandits over Boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.learning.test_cartpole import LIMIT_S, run_module

BANDIT = "sfactory_envs.synthetic.box_bandit:BoxBandit"
BANDIT_STEPS = 160_000  # a deviation that is one weight for all states, as by default, shrinks slowly
# low, high, target, scale of each dimension; None is an infinite bound
BOXES: dict[str, dict[str, Any]] = {
    "wide": {"low": [0.0], "high": [1000.0], "target": [500.0], "scale": [500.0]},
    "very wide": {"low": [-1e6], "high": [1e6], "target": [3e5], "scale": [1e6]},
    "tiny": {"low": [-1e-3], "high": [1e-3], "target": [5e-4], "scale": [1e-3]},
    "asymmetric": {"low": [-1.0], "high": [3.0], "target": [2.0], "scale": [2.0]},
    "per dimension": {"low": [0.0, -50.0], "high": [1.0, 10.0], "target": [0.75, -35.0], "scale": [0.5, 30.0]},
    "far from zero": {"low": [1000.0], "high": [1010.0], "target": [1007.0], "scale": [5.0]},
    "half-infinite": {"low": [0.0], "high": [None], "target": [1.5], "scale": [1.0]},
    "float64": {"low": [100.0], "high": [300.0], "target": [150.0], "scale": [100.0], "dtype": "float64"},
}


def train(folder: Path, *flags: str, within_s: float = LIMIT_S) -> float:
    """The best mean return over 100 episodes of a training with default flags."""
    result = run_module("sfactory.train", folder, "--device=cpu", "--seed=1", *flags, within_s=within_s)
    assert result["status"] == "done"
    return float(str(result["best_episode_return_mean"]))


@pytest.mark.long
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
def test_bandit_over_a_box_is_learned(tmp_path: Path, box: str, distribution: str) -> None:
    flags = (f"--env={BANDIT}", f"--env_kwargs={json.dumps(BOXES[box])}", f"--train_for_env_steps={BANDIT_STEPS}")

    assert train(tmp_path, *flags, f"--continuous_distribution={distribution}") >= 0.95


@pytest.mark.long
def test_frozen_lake_is_solved_by_its_id(tmp_path: Path) -> None:
    flags = ("--env=FrozenLake-v1", '--env_kwargs={"is_slippery": false}', "--train_for_env_steps=200000")

    assert train(tmp_path, *flags) >= 0.99  # 1 is the optimum


@pytest.mark.long
def test_taxi_is_solved_by_its_id(tmp_path: Path) -> None:
    flags = ("--env=Taxi-v4", "--train_for_env_steps=1000000")

    assert train(tmp_path, *flags, within_s=850.0) >= 7.0  # the optimum is 7.9 on average
