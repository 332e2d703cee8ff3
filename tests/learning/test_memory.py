"""GRU and minGRU remember for 64 steps; last actions and rewards as inputs of the core show what works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.learning.test_cartpole import run_module
from tests.support.long import long

RECALL = "sfactory_envs.synthetic.recall:Recall"
MEMORY = ("--use_rnn=True", "--rnn_size=64", "--encoder_mlp_layers", "64")


def best_return(folder: Path, steps: int, env_kwargs: dict[str, object], *flags: str) -> float:
    """The best mean return over 100 episodes."""
    env = (f"--env={RECALL}", f"--env_kwargs={json.dumps(env_kwargs)}", f"--train_for_env_steps={steps}")
    result = run_module("sfactory.train", folder, "--device=cpu", "--seed=1", *MEMORY, *env, *flags)
    assert result["status"] == "done"
    return float(str(result["best_episode_return_mean"]))


@pytest.mark.parametrize("rnn_type", [long("gru"), long("mingru")])
def test_a_cue_is_remembered_for_64_steps(tmp_path: Path, rnn_type: str) -> None:
    # What a step earns depends on nothing that comes later, and the value is of no help: its loss must not drown the
    # policy's in the weights that both share.
    loss = ("--gamma=0.0", "--value_loss_coeff=0.001", "--learning_rate=2e-3", "--num_epochs=2")
    envs = ("--num_workers=1", "--worker_num_splits=1", "--num_envs_per_worker=128", "--serial_mode=True")
    data = ("--rollout=64", "--batch_size=2048", "--num_batches_per_epoch=4", f"--rnn_type={rnn_type}")

    assert best_return(tmp_path, 1_000_000, {"length": 64}, *loss, *envs, *data) >= 0.95


@pytest.mark.parametrize(("inputs", "solves"), [long("action reward", True), long("", False)])
def test_what_was_done_and_earned_shows_which_action_is_right(tmp_path: Path, inputs: str, solves: bool) -> None:
    flags = ("--rollout=16", "--batch_size=1024", f"--core_inputs={inputs}")

    best = best_return(tmp_path, 300_000, {"length": 16, "choices": 2, "shown": False}, *flags)

    assert best >= 0.9 if solves else best < 0.65
