"""Policies that an earlier version saved can be played as long as they mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.saved_run import checkpoints, payload, play, refused, save_run


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save_policy(version: int) -> None:
    save_run(certainty=None)
    checkpoints().save(payload(50.0) | {"payload_version": version}, train_step=7, env_steps=70)


def test_a_policy_from_before_there_was_a_choice_of_optimizers_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    save_policy(version=2)

    result = play(capsys, "--max_num_episodes=3", "--eval_deterministic=True")

    assert (result["checkpoint_env_steps"], result["episode_return_mean"]) == (70, 5.0)


@pytest.mark.parametrize("version", [1, 999])
def test_a_policy_of_an_unknown_version_is_not_played(version: int, capsys: pytest.CaptureFixture[str]) -> None:
    save_policy(version)

    (error,) = refused(capsys, "--experiment=run")

    assert "written by another version of sfactory" in error
