"""A run that is started again resumes, restarts or is refused as its flags say, and loses nothing of the old run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.checkpoint.file import read as read_checkpoint
from sfactory.errors import ExitCode
from tests.support.trainer import FAULTY, UNHURRIED, Finished, RunTrainer, TrainerRun, trained

STEPS = 2048


def read(path: Path, name: str) -> dict[str, Any]:
    content = json.loads((path / name).read_text())
    assert isinstance(content, dict)
    return content


def files(path: Path) -> dict[str, bytes]:
    """Content of every file below a folder, but its lock, which every start writes."""
    found = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return {name: content for name, content in found.items() if name != ".lock"}


def resume_words(run: TrainerRun) -> list[str]:
    return shlex.split(run.last_stderr_line.partition("resume: ")[2])


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run, with the settings of which others are started."""
    return trained(
        tmp_path_factory.mktemp("trained_once"), STEPS, learning_rate=0.001, gamma=0.9, lr_schedule="constant"
    )


@pytest.fixture
def over(trained_once: Finished, tmp_path: Path) -> Finished:
    """That run, for one test."""
    return trained_once.copied_to(tmp_path)


@pytest.mark.usefixtures("over")
def test_resumed_run_learns_at_the_rate_it_is_given_now_from_its_own_weights(run_trainer: RunTrainer) -> None:
    given = {"train_for_env_steps": 6 * STEPS, "learning_rate": 0.0005, "adam_beta1": 0.5, "init_from": "no_such_run"}
    again = run_trainer(**given).done()

    rates = [row["train/learning_rate"] for row in again.metrics() if row["train/learning_rate"] is not None]
    assert rates == sorted(rates, reverse=True)
    assert set(rates) == {0.001, 0.0005}
    assert "--learning_rate=0.0005: the run was started with --learning_rate=0.001" in again.stderr
    assert "--init_from=no_such_run has no effect: only a new run begins with it" in again.stderr
    saved = read(again.run_dir, "config.json")
    assert saved["config"]["init_from"] == ""
    assert "saved run" not in saved["sources"].values()
    groups = again.payload()["optimizer"]["param_groups"]
    assert [(group["lr"], list(group["betas"])) for group in groups] == [(0.0005, [0.5, 0.999])]


def test_restarted_run_is_resumed_by_the_command_it_prints(over: Finished, run_trainer: RunTrainer) -> None:
    old = files(over.run_dir)

    # Weights of another shape, for another env: nothing of the old run may be in the way.
    other = {"env": "Acrobot-v1", "encoder_mlp_layers": (8,), "log_to_file": False}
    second = run_trainer(**other, train_for_env_steps=STEPS, restart_behavior="restart").done()

    aside = over.run_dir.with_name("run_old0001")
    assert files(aside) == old
    assert f"the earlier run {over.run_dir} is now {aside}" in second.stderr
    assert "resumed at" not in second.stderr
    config = read(second.run_dir, "config.json")["config"]
    assert (config["env"], config["gamma"], config["restart_behavior"]) == ("Acrobot-v1", 0.99, "resume")
    assert len(read(second.run_dir, "run.json")["sessions"]) == 1
    assert (aside / "sf_log.txt").exists()
    assert not (second.run_dir / "sf_log.txt").exists()
    assert not any(word.startswith("--restart") for word in resume_words(second))

    saved = second.saved_env_steps()
    third = run_trainer(**other, train_for_env_steps=2 * STEPS).done()

    assert f"resumed at {saved} env steps" in third.stderr
    assert sorted(path.name for path in over.run_dir.parent.iterdir()) == ["run", "run_old0001"]


def test_refused_starts_and_benchmark_move_nothing(over: Finished, run_trainer: RunTrainer) -> None:
    checkpoints, fails = files(over.run_dir / "checkpoint_p0"), {"raise_in_constructor": True}

    lacking = run_trainer(train_for_env_steps=2 * STEPS, load_checkpoint_kind="milestone")
    lacking.assert_ended(ExitCode.REFUSED)
    assert "holds no milestone checkpoint" in lacking.stderr
    before = files(over.run_dir)  # to which it has logged a line
    assert files(over.run_dir / "checkpoint_p0") == checkpoints

    refused = run_trainer(env=FAULTY, env_kwargs=fails, restart_behavior="restart")
    refused.assert_ended(ExitCode.REFUSED)
    run_trainer(restart_behavior="overwrite", benchmark=True, benchmark_seconds=1).done()

    assert "the constructor raises, as ordered" in refused.stderr
    assert resume_words(refused) == []  # it would be refused again
    assert files(over.run_dir) == before
    assert [path.name for path in over.run_dir.parent.iterdir()] == ["run"]


def test_finished_run_resumes_from_its_last_milestone(run_trainer: RunTrainer) -> None:
    # Each of ten datasets takes more than a tenth of a second, however busy the machine.
    saving = {"save_milestones_sec": 0.1, "save_every_sec": 0.15, "keep_checkpoints": 1}
    flags = {"env": UNHURRIED, "train_for_env_steps": 5 * STEPS // 4, **saving}
    first = run_trainer(**flags).done()
    directory = CheckpointDir(first.run_dir / "checkpoint_p0", keep=1)
    milestones = sorted((directory.path / "milestones").glob("*.pth"))
    # They are kept, where of the others only the last is; there is at most one in each interval.
    intervals = {int(read_checkpoint(path)["train_seconds"] // 0.1) for path in milestones}
    assert 2 <= len(milestones) == len(intervals)
    assert 0 not in intervals
    assert len(list(directory.path.glob("checkpoint_*.pth"))) == 1
    for path in milestones[1:]:  # the last one may have been due when training was over
        path.unlink()
    last = first.payload(kind="milestone")
    assert last["env_steps"] < 5 * STEPS // 4

    back = run_trainer(**flags, load_checkpoint_kind="milestone").done()

    assert re.search(rf"resumed at {last['env_steps']} env steps, .*, from the milestone checkpoint", back.stderr)
    assert "this run is finished" not in back.stderr
    assert back.result()["env_steps"] >= 5 * STEPS // 4
    # The kind is not remembered.
    assert not any(word.startswith("--load_checkpoint_kind") for word in resume_words(back))
    assert read(back.run_dir, "config.json")["config"]["load_checkpoint_kind"] == "latest"
    assert milestones[0].exists()
