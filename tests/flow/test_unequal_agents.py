"""Agents of different spaces learn with networks of their own, resume and are played together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.trainer import RunTrainer
from tests.support.warm_process import finished

ENV = "tests.support.unequal_agents:MaskedUnequal"


@pytest.mark.parametrize("inference", ["central", long("local")])
def test_each_kind_of_agents_has_a_policy_of_its_own(run_trainer: RunTrainer, inference: str) -> None:
    run = run_trainer(env=ENV, inference=inference, use_rnn=True, rnn_size=8, train_for_env_steps=1_500).done()

    outputs = [len(weights_of(run, policy)["policy_head.linear.weight"]) for policy in range(2)]
    assert outputs == [3, 4]  # three choices; means and standard deviations of two moves
    run_trainer(**{**run.flags, "train_for_env_steps": 2_500}).done()  # resumes

    played = finished(
        *("sfactory.enjoy", f"--train_dir={run.flags['train_dir']}", "--experiment=run", f"--env={ENV}"),
        *("--max_num_episodes=2", "--no_render=True"),
    )
    assert played.returncode == ExitCode.DONE, played.stderr
    result = json.loads(played.stdout.splitlines()[-1])
    assert result["episode_length_mean"] == 8
    met = finished("sfactory.match", "run", f"--train_dir={run.flags['train_dir']}", f"--env={ENV}")
    assert met.returncode == ExitCode.REFUSED
    assert "its agents have different spaces, so that no policy can play both sides" in met.stderr


def weights_of(run: Any, policy: int) -> dict[str, Any]:
    loaded = CheckpointDir(run.run_dir / f"checkpoint_p{policy}", 2).load("latest")
    assert loaded is not None
    weights: dict[str, Any] = loaded.payload["model"]
    return weights
