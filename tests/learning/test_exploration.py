"""A reward that random actions never find is found with the bonus for new observations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.learning.test_cartpole import run_module

FLAGS = (
    *("--env=sfactory_envs.synthetic.corridor:Corridor", '--env_kwargs={"length": 80}'),
    *("--serial_mode=True", "--device=cpu", "--num_workers=1", "--num_envs_per_worker=16", "--worker_num_splits=1"),
    *("--rollout=64", "--batch_size=256", "--num_batches_per_epoch=4", "--num_epochs=4", "--with_vtrace=False"),
    *("--encoder_mlp_layers", "64", "--normalize_input=False", "--learning_rate=1e-3", "--ppo_clip_ratio=0.2"),
    *("--exploration_loss_coeff=0.001", "--train_for_env_steps=200000"),
    "--normalize_returns=False",  # of returns that are all 0 it makes noise, by which policies at times walk to the end
)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_end_of_a_long_corridor_is_found_with_the_bonus_alone(tmp_path: Path, seed: int) -> None:
    plain = run_module("sfactory.train", tmp_path / "plain", *FLAGS, f"--seed={seed}")
    curious = run_module("sfactory.train", tmp_path / "curious", *FLAGS, f"--seed={seed}", "--rnd=True")

    assert plain["best_episode_return_mean"] == 0.0
    assert float(str(curious["episode_return_mean"])) > 0.8
