"""Faults of a run's disk and files: no checkpoint is lost, none is forgotten, and nothing is deleted."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest

from sfactory.checkpoint.file import read
from sfactory.errors import ExitCode
from sfactory.experiment.run_dir import saved_env_steps
from tests.support import hooks
from tests.support.files import flip_a_bit, truncate
from tests.support.processes import eventually
from tests.support.trainer import BANDIT, CLEAN_S, ENDLESS, REFUSED_S, UNHURRIED, Finished, RunTrainer, trained, within

STEPS = 4096


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder by which a test breaks the learner's disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setenv(hooks.FOLDER, str(folder))
    return folder


def checkpoints(run_dir: Path) -> list[Path]:
    """Payload files of the latest checkpoints, oldest first."""
    return sorted(run_dir.glob("checkpoint_p0/checkpoint_*.pth"))


def files(run_dir: Path) -> dict[str, bytes]:
    """Every file of checkpoints, and the run's config, by name."""
    found = [*run_dir.glob("checkpoint_p0/*"), run_dir / "config.json"]
    return {file.name: file.read_bytes() for file in found}


@pytest.fixture(scope="module")
def trained_twice(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run that has saved exactly two checkpoints: at the end of each of its sessions."""
    folder = tmp_path_factory.mktemp("trained_twice")
    run = trained(folder, STEPS, 2 * STEPS, save_every_sec=600, keep_checkpoints=2)
    assert len(checkpoints(run.run_dir)) == 2
    return run


@pytest.fixture
def two_checkpoints(trained_twice: Finished, tmp_path: Path) -> Finished:
    """That run, for one test."""
    return trained_twice.copied_to(tmp_path)


def test_full_disk_is_reported_and_a_later_save_succeeds(run_trainer: RunTrainer, disk: Path) -> None:
    # Weights and moments of 4 MB: more than a full disk takes, while the learner's log is less.
    hook = "tests.support.hooks:fill_disk"
    run = run_trainer(env=UNHURRIED, train_for_env_steps=ENDLESS, encoder_mlp_layers=(512, 512), after_train_step=hook)
    run.wait_until(lambda: bool(run.metrics()) and run.saved_env_steps() > 0)

    (disk / hooks.FULL).touch()
    run.wait_until("could not be written.*training continues")
    saved, before = run.saved_env_steps(), run.metrics()[-1]["env_steps"]
    run.wait_until(lambda: run.metrics()[-1]["env_steps"] > before)

    def suffixes() -> set[str]:
        return {path.suffix for path in run.run_dir.glob("checkpoint_p0/*")}

    assert run.saved_env_steps() == saved
    # A file that is being written is there for a moment, every few seconds.
    assert eventually(lambda: suffixes() == {".pth", ".json"}, within(1.0)), run.report(f"left: {suffixes()}")
    for path in checkpoints(run.run_dir):
        read(path)

    (disk / hooks.FULL).unlink()
    run.saves_again()
    (disk / hooks.FULL).touch()
    reports = run.stderr.count("could not be written")
    run.wait_until(lambda: run.stderr.count("could not be written") > reports)
    saved = run.saved_env_steps()
    run.signal_group(signal.SIGINT)

    # A disk that is still full at the end is an error.
    run.assert_ended(ExitCode.CANNOT_SAVE)
    assert run.saved_env_steps() == saved


def test_damaged_newest_checkpoint_gives_way_to_the_one_before(
    two_checkpoints: Finished, run_trainer: RunTrainer
) -> None:
    older, newest = checkpoints(two_checkpoints.run_dir)
    flip_a_bit(newest)

    run = run_trainer(**{**two_checkpoints.flags, "train_for_env_steps": 3 * STEPS}).done()

    assert re.search(rf"{newest.name} skipped \(.*\); using .*{older.name} instead", run.stderr), run.report("mute")
    assert f"resumed at {older.stem.split('_')[-1]} env steps" in run.stderr
    assert run.result()["env_steps"] >= 3 * STEPS
    # It is not deleted: it is no part of the run's past any more, and says so.
    assert newest.with_name(f"set_aside_{newest.name}").exists()


def test_run_with_damaged_checkpoints_alone_is_refused_and_nothing_is_deleted(
    two_checkpoints: Finished, run_trainer: RunTrainer
) -> None:
    for path in checkpoints(two_checkpoints.run_dir):
        truncate(path)
    before = files(two_checkpoints.run_dir)

    run = run_trainer(**{**two_checkpoints.flags, "train_for_env_steps": 3 * STEPS})

    run.assert_ended(ExitCode.REFUSED, loads=False)
    for text in (*(path.name for path in checkpoints(run.run_dir)), "Nothing was deleted"):
        assert text in run.stderr
    assert "Traceback" not in run.stderr
    assert files(run.run_dir) == before


@pytest.mark.parametrize("serial", [False, True])
def test_run_whose_directory_is_renamed_ends_at_once_and_saves_nothing_elsewhere(
    run_trainer: RunTrainer, serial: bool
) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, serial_mode=serial, save_every_sec=0.1)
    run.wait_until_training()
    moved = run.run_dir.with_name("moved")

    run.run_dir.rename(moved)

    assert run.wait(within(10.0)) == ExitCode.CANNOT_SAVE, run.report("wrong exit code")
    assert not run.run_dir.exists()
    assert re.fullmatch(rf"RESULT failed .* was renamed to {moved} under the run; .*", run.last_stderr_line)
    assert run.stderr.count("renamed") == 1 + run.stderr.count("is not written"), run.stderr
    assert " resume: " not in run.last_stderr_line
    assert saved_env_steps(moved) > 0
    run.assert_all_gone(CLEAN_S)


def test_second_run_in_the_same_directory_is_refused(run_trainer: RunTrainer) -> None:
    first = run_trainer(env=UNHURRIED, train_for_env_steps=ENDLESS)
    first.wait_until_training()

    seconds = [
        run_trainer(env=UNHURRIED, train_for_env_steps=ENDLESS, restart_behavior=behavior)
        for behavior in ("resume", "restart", "overwrite")
    ]

    for second in seconds:
        second.wait(REFUSED_S)
        assert f"in use by process {first.pid} on host {socket.gethostname()}" in second.stderr
    assert [path.name for path in first.run_dir.parent.iterdir()] == ["run"]
    first.saves_again()
    first.stop()
    for second in seconds:  # now that no run writes to the directory
        second.assert_ended(ExitCode.REFUSED)


def test_run_is_not_resumed_with_another_env_or_model(two_checkpoints: Finished, run_trainer: RunTrainer) -> None:
    before = files(two_checkpoints.run_dir)
    other = {"env": "Acrobot-v1", "encoder_mlp_layers": (32,), "use_rnn": True}

    run = run_trainer(**{**two_checkpoints.flags, **other, "train_for_env_steps": 3 * STEPS})

    run.assert_ended(ExitCode.REFUSED)
    errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 3, run.report("one line for each difference")
    differences = {
        "--env=Acrobot-v1": "--env=CartPole-v1",
        "--encoder_mlp_layers 32": "--encoder_mlp_layers 16 16",
        "--use_rnn=True": "--use_rnn=False",
    }
    for new, old in differences.items():
        assert any(line.startswith(f"error: {new}: ") and old in line for line in errors), run.report(f"not {new}")
    assert files(run.run_dir) == before


def test_env_that_has_changed_its_shape_under_its_old_name_is_refused(run_trainer: RunTrainer) -> None:
    flags = {"env": BANDIT, "train_for_env_steps": STEPS}
    first = run_trainer(**flags, env_kwargs={"num_contexts": 4}).done()
    before = files(first.run_dir)

    run = run_trainer(**{**flags, "train_for_env_steps": 3 * STEPS}, env_kwargs={"num_contexts": 6})

    run.assert_ended(ExitCode.REFUSED)
    assert f"does not fit --env={BANDIT} as it is now" in run.stderr
    assert "is [16, 4] there and [16, 6] here" in run.stderr
    assert files(run.run_dir) == before  # config.json, too: what was refused is no setting of the run
