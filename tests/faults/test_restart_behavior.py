"""A run that restarts under an old name leaves the old run whole, and every checkpoint can be resumed."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import ExitCode
from tests.support.finished import Finished, trained
from tests.support.long import long
from tests.support.trainer import REFUSED_S, RunTrainer, TrainerRun

pytestmark = pytest.mark.faults

STEPS = 2048
ENDLESS = 1_000_000_000


def finished(run: TrainerRun) -> TrainerRun:
    run.assert_ended(ExitCode.DONE)
    return run


def read(path: Path, name: str) -> dict[str, Any]:
    content = json.loads((path / name).read_text())
    assert isinstance(content, dict)
    return content


def files(path: Path) -> dict[str, bytes]:
    """Content of every file below a folder, but its lock, which every start writes."""
    found = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return {name: content for name, content in found.items() if name != ".lock"}


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run, with the settings of which others are started."""
    return trained(tmp_path_factory.mktemp("trained_once"), STEPS)


@pytest.fixture
def over(trained_once: Finished, tmp_path: Path) -> Finished:
    """That run, for one test."""
    return trained_once.copied_to(tmp_path)


def resume_words(run: TrainerRun) -> list[str]:
    return shlex.split(run.last_stderr_line.partition("resume: ")[2])


def test_restarted_run_is_resumed_by_the_command_it_prints(run_trainer: RunTrainer) -> None:
    first = finished(run_trainer(train_for_env_steps=STEPS, gamma=0.9))
    old = files(first.run_dir)

    # Weights of another shape, for another env: nothing of the old run may be in the way.
    second = finished(
        run_trainer(
            env="Acrobot-v1",
            encoder_mlp_layers=(8,),
            train_for_env_steps=STEPS,
            restart_behavior="restart",
            log_to_file=False,
        )
    )

    aside = first.run_dir.with_name("run_old0001")
    assert files(aside) == old
    assert f"the earlier run {first.run_dir} is now {aside}" in second.stderr
    assert "resumed at" not in second.stderr
    config = read(second.run_dir, "config.json")["config"]
    assert (config["env"], config["gamma"], config["restart_behavior"]) == ("Acrobot-v1", 0.99, "resume")
    assert len(read(second.run_dir, "run.json")["sessions"]) == 1
    assert (aside / "sf_log.txt").exists()
    assert not (second.run_dir / "sf_log.txt").exists()
    assert not any(word.startswith("--restart") for word in resume_words(second))

    saved = second.saved_env_steps()
    third = finished(
        run_trainer(env="Acrobot-v1", encoder_mlp_layers=(8,), train_for_env_steps=2 * STEPS, log_to_file=False)
    )

    assert f"resumed at {saved} env steps" in third.stderr
    assert sorted(path.name for path in first.run_dir.parent.iterdir()) == ["run", "run_old0001"]


def test_an_overwritten_run_is_the_last_one_that_can_be_brought_back(run_trainer: RunTrainer) -> None:
    flags = {"train_for_env_steps": STEPS, "restart_behavior": "overwrite", "save_milestones_sec": 0.2}
    seeds = []
    for seed in (1, 2, 3):
        run = finished(run_trainer(**flags, seed=seed, with_tensorboard=True))
        aside = run.run_dir.with_name("run_overwritten")
        seeds.append((read(run.run_dir, "config.json")["config"]["seed"], aside.exists()))

    assert seeds == [(1, False), (2, True), (3, True)]
    assert read(aside, "config.json")["config"]["seed"] == 2
    assert sorted(path.name for path in aside.parent.iterdir()) == ["run", "run_overwritten"]

    # A run that was moved aside is a run like any other.
    again = finished(run_trainer(experiment="run_overwritten", train_for_env_steps=2 * STEPS, seed=2))
    assert "resumed at" in again.stderr


def test_a_start_that_is_refused_moves_nothing(over: Finished, run_trainer: RunTrainer) -> None:
    before = files(over.run_dir)

    refused = run_trainer(
        env="sfactory_envs.synthetic.faulty:Faulty",
        env_kwargs={"raise_in_constructor": True},
        restart_behavior="restart",
    )

    refused.assert_ended(ExitCode.REFUSED)
    assert files(over.run_dir) == before
    assert [path.name for path in over.run_dir.parent.iterdir()] == ["run"]
    assert "--restart_behavior=restart" in resume_words(refused)


@pytest.mark.parametrize("behavior", ["restart", long("overwrite")])
def test_a_run_that_is_training_is_not_moved_from_under_its_feet(run_trainer: RunTrainer, behavior: str) -> None:
    running = run_trainer(train_for_env_steps=ENDLESS)
    running.wait_until_training()

    second = run_trainer(train_for_env_steps=ENDLESS, restart_behavior=behavior)

    second.wait(REFUSED_S)
    assert f"is in use by process {running.pid}" in second.stderr
    assert [path.name for path in running.run_dir.parent.iterdir()] == ["run"]
    saved = running.saved_env_steps()
    running.wait_until(lambda: running.saved_env_steps() > saved)
    running.signal_group(signal.SIGINT)
    running.assert_ended(ExitCode.SIGINT)
    second.assert_ended(ExitCode.REFUSED)  # now that no run writes to the directory


def test_a_benchmark_moves_nothing(over: Finished, run_trainer: RunTrainer) -> None:
    before = files(over.run_dir)

    measured = run_trainer(restart_behavior="overwrite", benchmark=True, benchmark_seconds=1)

    measured.assert_ended(ExitCode.DONE)
    assert files(over.run_dir) == before
    assert [path.name for path in over.run_dir.parent.iterdir()] == ["run"]


def test_a_finished_run_goes_on_from_its_last_milestone(run_trainer: RunTrainer) -> None:
    flags = {"train_for_seconds": 4, "save_milestones_sec": 1, "save_every_sec": 0.3, "keep_checkpoints": 1}
    first = finished(run_trainer(**flags))
    directory = CheckpointDir(first.run_dir / "checkpoint_p0", keep=1)
    milestones = sorted((directory.path / "milestones").glob("*.pth"))
    # They are kept, where of the others only the last is.
    assert 2 <= len(milestones) <= 4
    assert len(list(directory.path.glob("checkpoint_*.pth"))) == 1
    # The last one may have been due when training was over.
    for path in milestones[1:]:
        path.unlink()
    last = directory.load("milestone")
    assert last is not None
    assert 1.0 <= last.payload["train_seconds"] < 4.0

    same = finished(run_trainer(**flags))
    assert "this run is finished" in same.stderr

    back = finished(run_trainer(**flags, load_checkpoint_kind="milestone"))

    assert f"resumed at {last.payload['env_steps']} env steps" in back.stderr
    assert "this run is finished" not in back.stderr
    assert back.result()["train_seconds"] >= 4.0
    assert not any(word.startswith("--load_checkpoint_kind") for word in resume_words(back))
    assert milestones[0].exists()


@pytest.mark.parametrize("kind", [long("best"), "milestone"])
def test_a_kind_of_checkpoint_that_a_run_has_not_is_no_reason_to_begin_at_nothing(
    over: Finished, run_trainer: RunTrainer, kind: str
) -> None:
    before = files(over.run_dir / "checkpoint_p0")

    refused = run_trainer(train_for_env_steps=2 * STEPS, load_checkpoint_kind=kind)

    refused.assert_ended(ExitCode.REFUSED)
    assert f"holds no {kind} checkpoint" in refused.stderr
    assert files(over.run_dir / "checkpoint_p0") == before
