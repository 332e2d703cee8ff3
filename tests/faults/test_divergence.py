"""Gradients and weights that are not finite: one is skipped, many end the run, and none is ever saved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import ExitCode
from sfactory.learner.diagnostics import EVIDENCE_FILE
from tests.support import hooks
from tests.support.hooks import SPOIL_AT
from tests.support.long import long
from tests.support.trainer import RunTrainer, TrainerRun

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
MOST_BAD = 10  # the default of --max_bad_steps


def assert_saved_weights_are_finite(run: TrainerRun) -> None:
    loaded = CheckpointDir(run.run_dir / "checkpoint_p0", keep=2).load()
    assert loaded is not None
    tensors = [value for value in loaded.payload["model"].values() if value.is_floating_point()]
    assert tensors
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def test_one_gradient_that_is_not_finite_is_skipped_and_counted_and_the_run_ends_well(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=30_000, after_train_step=("tests.support.hooks:spoil_gradient_once",))

    assert run.wait(120) == ExitCode.DONE, run.report("wrong exit code")
    assert run.last_stderr_line.startswith("RESULT done "), run.report("wrong last line")
    assert re.findall(r"update \d+ skipped: .* \((\d+) so far\)", run.stderr) == ["1"]
    assert run.result()["updates"] > SPOIL_AT
    assert run.result()["env_steps"] >= 30_000
    assert_saved_weights_are_finite(run)
    run.assert_clean()


@pytest.mark.parametrize("serial", [False, long(True)])
def test_gradients_that_are_not_finite_for_ever_end_the_run_with_the_batch_saved(
    run_trainer: RunTrainer, serial: bool
) -> None:
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        after_train_step=("tests.support.hooks:spoil_gradients",),
        serial_mode=serial,
        save_every_sec=0.2,
    )

    assert run.wait(120) == ExitCode.DIVERGED, run.report("wrong exit code")
    assert run.last_stderr_line.startswith("RESULT failed "), run.report("wrong last line")
    assert f"{MOST_BAD} updates in a row" in run.last_stderr_line
    assert len(re.findall(r"update \d+ skipped", run.stderr)) == MOST_BAD
    evidence = torch.load(run.run_dir / "checkpoint_p0" / EVIDENCE_FILE, weights_only=True)
    assert evidence["train_step"] >= SPOIL_AT + MOST_BAD
    assert all(bool(torch.isfinite(value).all()) for value in evidence["model"].values() if value.is_floating_point())
    run.assert_clean()


def test_a_weight_that_is_not_finite_is_neither_published_nor_saved(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        after_train_step=("tests.support.hooks:spoil_weight",),
        save_every_sec=0.01,  # so that it is due in the moment in which the weight is spoiled
    )

    assert run.wait(120) == ExitCode.DIVERGED, run.report("wrong exit code")
    assert run.last_stderr_line.startswith("RESULT failed "), run.report("wrong last line")
    assert "weights are not finite" in run.last_stderr_line, run.report("another cause")
    assert_saved_weights_are_finite(run)
    run.assert_clean()


@pytest.mark.parametrize("serial", [long(False), True])
def test_a_policy_whose_weights_are_not_finite_costs_the_others_nothing(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serial: bool
) -> None:
    monkeypatch.setenv(hooks.FOLDER, str(tmp_path))
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        num_policies=2,
        after_train_step=("tests.support.hooks:spoil_first_policy",),
        serial_mode=serial,
        save_every_sec=1000,  # so that nothing but the end saves
    )

    assert run.wait(120) == ExitCode.DIVERGED, run.report("wrong exit code")
    assert run.last_stderr_line.startswith("RESULT failed "), run.report("wrong last line")
    assert run.saved_env_steps() == 0, run.report("weights that are not finite were saved")
    saved = CheckpointDir(run.run_dir / "checkpoint_p1", keep=2).load()
    assert saved is not None, run.report("what the other policy had learned is lost")
    assert saved.payload["env_steps"] > 0
    run.assert_clean()
