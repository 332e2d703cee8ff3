"""What befalls a run's disk and its files: no checkpoint is lost, none is forgotten, and nothing is deleted."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.checkpoint_file import read, sidecar_of
from sfactory.errors import ExitCode
from tests.support import hooks
from tests.support.files import empty, flip_a_bit, truncate
from tests.support.finished import Finished, InFiles, trained
from tests.support.processes import eventually
from tests.support.resume import assert_resumes
from tests.support.trainer import REFUSED_S, RunTrainer, TrainerRun, within

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
STEPS = 4096
BANDIT = "sfactory_envs.synthetic.bandit:Bandit"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder by which a test has something befall the learner's disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setenv(hooks.FOLDER, str(folder))
    return folder


def finished(run: TrainerRun) -> TrainerRun:
    run.assert_ended(ExitCode.DONE)
    return run


def checkpoints(run: InFiles) -> list[Path]:
    """Payload files of the latest checkpoints, oldest first."""
    return sorted(run.run_dir.glob("checkpoint_p0/checkpoint_*.pth"))


def files(run: InFiles) -> dict[str, bytes]:
    """Every file of checkpoints, and the run's config, by name."""
    found = [*run.run_dir.glob("checkpoint_p0/*"), run.run_dir / "config.json"]
    return {file.name: file.read_bytes() for file in found}


@pytest.fixture(scope="module")
def trained_twice(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run that has saved exactly two checkpoints: at the end of each of its sessions."""
    folder = tmp_path_factory.mktemp("trained_twice")
    run = trained(folder, STEPS, 2 * STEPS, save_every_sec=600, keep_checkpoints=2)
    assert len(checkpoints(run)) == 2, checkpoints(run)
    return run


@pytest.fixture
def two_checkpoints(trained_twice: Finished, tmp_path: Path) -> Finished:
    """That run, for one test."""
    return trained_twice.copied_to(tmp_path)


def env_steps(path: Path) -> int:
    return int(path.stem.split("_")[-1])


def test_a_kill_between_writing_and_naming_a_checkpoint_costs_that_one_alone(
    run_trainer: RunTrainer, disk: Path
) -> None:
    hook = "tests.support.hooks:stop_before_naming"
    run = run_trainer(train_for_env_steps=ENDLESS, after_train_step=hook)
    run.wait_until_training()

    (disk / hooks.STOP).touch()
    run.wait_until((disk / hooks.STOPPED).exists)
    unnamed, name = map(Path, (disk / hooks.STOPPED).read_text().split("\n"))
    run.kill("sf-main", signal.SIGKILL)

    assert run.wait() == -signal.SIGKILL
    assert unnamed.stat().st_size > 0
    assert not name.exists()
    run.assert_clean()
    (disk / hooks.STOP).unlink()  # the hook is a setting of the run, which goes on with it
    assert_resumes(run, run_trainer)
    assert not list(run.run_dir.rglob(".tmp-*")), "what was never named is still there"


def test_full_disk_is_reported_and_a_later_save_succeeds(run_trainer: RunTrainer, disk: Path) -> None:
    # Weights and moments of 4 MB: more than a full disk takes, while the learner's log is less.
    hook = "tests.support.hooks:fill_disk"
    run = run_trainer(train_for_env_steps=ENDLESS, encoder_mlp_layers=(512, 512), after_train_step=hook)
    run.wait_until_training()

    (disk / hooks.FULL).touch()
    run.wait_until("could not be written.*training (goes on|continues)")
    saved = run.saved_env_steps()
    before = last_trained(run)
    run.wait_until(lambda: last_trained(run) > before)

    assert run.saved_env_steps() == saved
    # A file that is being written is there for a moment, every few seconds.
    assert eventually(lambda: suffixes(run) == {".pth", ".json"}, within(1.0)), run.report(f"left: {suffixes(run)}")
    for path in checkpoints(run):
        read(path)

    (disk / hooks.FULL).unlink()
    run.wait_until(lambda: run.saved_env_steps() > saved)
    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT)


def suffixes(run: TrainerRun) -> set[str]:
    """Of all files beside the latest checkpoints, theirs included."""
    return {path.suffix for path in run.run_dir.glob("checkpoint_p0/*")}


def last_trained(run: TrainerRun) -> int:
    """Env steps trained as metrics.jsonl tells."""
    return max((row["env_steps"] for row in run.metrics()), default=0)


def test_a_disk_that_is_still_full_at_the_end_is_an_error_that_says_so(run_trainer: RunTrainer, disk: Path) -> None:
    hook = "tests.support.hooks:fill_disk"
    run = run_trainer(train_for_env_steps=ENDLESS, encoder_mlp_layers=(512, 512), after_train_step=hook)
    run.wait_until_training()

    (disk / hooks.FULL).touch()
    run.wait_until("could not be written")
    saved = run.saved_env_steps()
    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.CANNOT_SAVE)
    assert run.saved_env_steps() == saved
    (disk / hooks.FULL).unlink()
    assert_resumes(run, run_trainer)


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before_and_both_are_named(
    two_checkpoints: Finished, run_trainer: RunTrainer
) -> None:
    older, newest = checkpoints(two_checkpoints)
    damages: tuple[Callable[[Path], None], ...] = (truncate, flip_a_bit, empty)
    for damage in damages:
        name = f"run_{damage.__name__}"
        shutil.copytree(two_checkpoints.run_dir, two_checkpoints.run_dir.with_name(name))
        flags = {**two_checkpoints.flags, "experiment": name, "train_for_env_steps": 3 * STEPS}
        damage(two_checkpoints.run_dir.with_name(name) / "checkpoint_p0" / newest.name)

        run = finished(run_trainer(**flags))

        assert re.search(rf"{newest.name} skipped \(.*\); using .*{older.name} instead", run.stderr), run.report("mute")
        assert f"resumed at {env_steps(older)} env steps" in run.stderr
        assert run.result()["env_steps"] >= 3 * STEPS
        # It is not deleted: it is no part of the run's past any more, and says so.
        assert (newest.parent.parent.with_name(name) / "checkpoint_p0" / f"set_aside_{newest.name}").exists()


def test_where_all_checkpoints_are_damaged_the_run_is_refused_and_nothing_is_deleted(
    two_checkpoints: Finished, run_trainer: RunTrainer
) -> None:
    for path in checkpoints(two_checkpoints):
        truncate(path)
    before = files(two_checkpoints)

    run = run_trainer(**{**two_checkpoints.flags, "train_for_env_steps": 3 * STEPS})

    run.assert_ended(ExitCode.REFUSED, loads=False)
    for path in checkpoints(two_checkpoints):
        assert path.name in run.stderr
    assert "Nothing was deleted" in run.stderr
    assert "Traceback" not in run.stderr
    assert files(run) == before


class Gadget:
    """Touches a file when it is unpickled by a reader that runs code."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Path.touch, (self.marker,))


def make_malicious(path: Path, marker: Path) -> None:
    """Put code into a checkpoint, and have its sidecar vouch for it, as an attacker would."""
    torch.save({"model": Gadget(marker)}, path)
    content = path.read_bytes()
    digest = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    sidecar_of(path).write_text(json.dumps({**json.loads(sidecar_of(path).read_text()), **digest}))


def test_a_malicious_checkpoint_is_refused_and_its_code_does_not_run(
    two_checkpoints: Finished, run_trainer: RunTrainer, tmp_path: Path
) -> None:
    older, newest = checkpoints(two_checkpoints)
    marker = tmp_path / "marker"
    make_malicious(older, marker)
    make_malicious(newest, marker)
    before = files(two_checkpoints)

    run = run_trainer(**{**two_checkpoints.flags, "train_for_env_steps": 3 * STEPS})

    run.assert_ended(ExitCode.REFUSED, loads=False)
    assert run.stderr.count("cannot be loaded safely") >= 2
    assert not marker.exists()
    assert files(run) == before


def test_a_second_run_in_the_same_directory_is_refused_by_the_process_and_host_of_the_first(
    run_trainer: RunTrainer,
) -> None:
    first = run_trainer(train_for_env_steps=ENDLESS)
    first.wait_until_training()

    second = run_trainer(train_for_env_steps=ENDLESS)

    second.wait(REFUSED_S)
    assert f"in use by process {first.pid} on host {socket.gethostname()}" in second.stderr
    saved = first.saved_env_steps()
    first.wait_until(lambda: first.saved_env_steps() > saved)
    first.signal_group(signal.SIGINT)
    first.assert_ended(ExitCode.SIGINT)
    second.assert_ended(ExitCode.REFUSED)  # now that no run writes to the directory


def test_run_is_not_resumed_with_another_env_or_model(two_checkpoints: Finished, run_trainer: RunTrainer) -> None:
    before = files(two_checkpoints)
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
        assert any(line.startswith(f"error: {new}: ") and old in line for line in errors), run.report(
            f"nothing of {new}"
        )
    assert files(run) == before


def test_an_env_that_has_changed_its_shape_under_its_old_name_is_refused(run_trainer: RunTrainer) -> None:
    flags = {"env": BANDIT, "train_for_env_steps": STEPS}
    first = finished(run_trainer(**flags, env_kwargs={"num_contexts": 4}))
    before = files(first)

    run = run_trainer(**{**flags, "train_for_env_steps": 3 * STEPS}, env_kwargs={"num_contexts": 6})

    run.assert_ended(ExitCode.REFUSED)
    assert f"does not fit --env={BANDIT} as it is now" in run.stderr
    assert "is [16, 4] there and [16, 6] here" in run.stderr
    assert files(run) == before  # config.json, too: what was refused is no setting of the run
    assert_resumes(first, run_trainer)
