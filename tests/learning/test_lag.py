"""Policies that are many updates old still teach with V-trace, and mislead without a correction."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.learning.test_cartpole import run_module

# Weights are published every 20 updates, so that a step is up to 20 versions old, and more while it waits.
# The family's learning rate is twice this one; with such old steps it makes either of them swing.
OLD = [
    *("--env=CartPole-v1", "--device=cpu", "--publish_interval=20"),
    *("--policy_loss=pg", "--num_epochs=1", "--learning_rate=1e-3"),
]
LEARNED = 400.0  # a random policy holds the pole for about 20 steps
SEEDS = (1, 2, 3)


def best_mean(folder: Path, seed: int, *flags: str) -> float:
    """The best mean return over 100 episodes of a run whose policies are old."""
    result = run_module("sfactory.train", folder, f"--seed={seed}", *OLD, *flags)
    lag = result["policy_lag"]
    assert isinstance(lag, dict)
    assert 20 <= lag["max"] < 40  # of what waits while the next ones are published, too
    return float(str(result["best_episode_return_mean"]))


@pytest.mark.long
def test_with_an_old_policy_v_trace_learns_where_plain_policy_gradient_is_worse(tmp_path: Path) -> None:
    corrected = [best_mean(tmp_path / f"vtrace_{seed}", seed) for seed in SEEDS]
    plain = [best_mean(tmp_path / f"plain_{seed}", seed, "--with_vtrace=False") for seed in SEEDS]

    assert median(corrected) >= LEARNED
    assert median(plain) < min(corrected)
