"""A critic that sees what the actor does not see makes the actor learn faster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.learning.test_cartpole import run_module

LUCK = "sfactory_envs.synthetic.hidden_luck:HiddenLuck"
OBJECTIVE = "train/true_objective_mean"
LEARNED = 0.8  # share of right actions; a random policy has 1/4
STEPS = 60_000
FLAGS = (
    *(f"--env={LUCK}", "--device=cpu", "--serial_mode=True", f"--train_for_env_steps={STEPS}"),
    *("--num_workers=1", "--num_envs_per_worker=32", "--encoder_mlp_layers=64", "--learning_rate=2e-3"),
    *("--stats_avg=50", "--experiment_summaries_interval=0.2"),
)


def steps_to_learn(folder: Path, seed: int, *flags: str) -> int:
    """Env steps after which 50 episodes have on average as many right actions as LEARNED; STEPS if they never have."""
    run_module("sfactory.train", folder, f"--seed={seed}", *FLAGS, *flags)
    rows = [json.loads(line) for line in (folder / "cartpole" / "metrics.jsonl").read_text().splitlines()]
    learned = [row for row in rows if row.get(OBJECTIVE, 0.0) >= LEARNED]
    return int(learned[0]["env_steps"]) if learned else STEPS


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_seeing_the_luck_saves_a_third_of_the_steps(tmp_path: Path, seed: int) -> None:
    seeing = steps_to_learn(tmp_path / "seeing", seed)
    blind = steps_to_learn(tmp_path / "blind", seed, "--ignore_obs_keys=critic", "--actor_critic_share_weights=False")

    assert seeing <= 2 / 3 * blind
