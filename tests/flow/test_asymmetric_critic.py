"""A critic with observations of its own trains, resumes, plays and is exported; the env need not show them any more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfactory import enjoy, export
from sfactory.errors import ExitCode
from tests.support.trainer import RunTrainer, assert_resumes

LUCK = "sfactory_envs.synthetic.hidden_luck:HiddenLuck"


def test_groups_of_observations_train_resume_play_and_are_exported(
    run_trainer: RunTrainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = {"use_rnn": True, "rnn_size": 8, "separate_value_optimizer": True, "actor_critic_share_weights": False}
    run = run_trainer(env=LUCK, **memory, train_for_env_steps=1_000).done()
    assert "observation 'critic' (float32, shape (1,)) is read by the critic alone as 1 number," in run.stderr
    assert "observation 'policy' (float32, shape (4,)) is read by actor and critic as 4 numbers" in run.stderr
    assert run.payload()["model"]["critic_tower.encoder.layers.0.weight"].shape == (16, 5)
    assert run.payload()["model"]["tower.encoder.layers.0.weight"].shape == (16, 4)
    assert_resumes(run, run_trainer)

    config = run.run_dir / "config.json"
    saved = json.loads(config.read_text())
    assert saved["config"]["critic_obs_keys"] == ["critic"]
    where = ["--experiment=run", f"--train_dir={run.flags['train_dir']}", f"--env={LUCK}", "--trust_run_dir=True"]
    results = []
    for shows_luck in (True, False):
        saved["config"]["env_kwargs"] = {"shows_luck": shows_luck}
        config.write_text(json.dumps(saved))
        assert enjoy.main([*where, "--max_num_episodes=3", "--eval_deterministic=True", "--seed=1"]) == ExitCode.DONE
        results.append(json.loads(capsys.readouterr().out)["true_objective_mean"])
    assert results[0] == results[1]
    assert export.main([*where, f"--out={tmp_path / 'actor.safetensors'}"]) == ExitCode.DONE

    other = run_trainer(**{**run.flags, "critic_obs_keys": ("policy",)})
    assert other.wait() == ExitCode.REFUSED
    assert "--critic_obs_keys" in other.stderr


def test_keys_that_the_env_does_not_have_are_refused_before_a_process_starts(run_trainer: RunTrainer) -> None:
    run = run_trainer(env=LUCK, critic_obs_keys=("state",))

    run.assert_ended(ExitCode.REFUSED)
    assert "--critic_obs_keys=state: there is no such observation; there are critic, policy" in run.stderr
