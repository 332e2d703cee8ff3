"""What a user's observers and hooks raise ends the run by their name, saved and clean, as an evaluator's death does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from tests.support.hooks import FAIL_AT, MOMENT
from tests.support.long import long
from tests.support.process_states import wait_until_all_work
from tests.support.resume import assert_resumes
from tests.support.trainer import RunTrainer, within

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
WATCHERS = "tests.support.hooks"
NO_MAIL = 'raise ValueError("no mail server")'


@pytest.mark.parametrize("serial", [False, long(True)])
def test_a_hook_that_raises_ends_the_run_with_its_traceback_and_what_was_learned_is_saved(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serial: bool
) -> None:
    failed = tmp_path / "failed"
    monkeypatch.setenv(MOMENT, str(failed))
    run = run_trainer(
        after_train_step=f"{WATCHERS}:fail",
        serial_mode=serial,
        num_batches_per_epoch=1,
        num_epochs=1,
        train_for_env_steps=ENDLESS,
    )
    run.wait_until(failed.exists)

    run.assert_ended(ExitCode.LEARNER, within(5.0))
    assert "sf-learner-0 failed" in run.last_stderr_line
    assert f"--after_train_step={WATCHERS}:fail" in run.last_stderr_line
    assert "ValueError: the loss is not to my liking" in run.last_stderr_line
    assert 'raise ValueError("the loss is not to my liking")' in run.stderr
    result = run.result()
    assert result["status"] == "failed"
    assert result["updates"] == FAIL_AT
    assert result["env_steps"] == run.saved_env_steps() > 0


@pytest.mark.parametrize(
    ("observer", "method", "trains", "serial"),
    [
        ("FailsInInit", "on_init", False, True),
        ("FailsInStart", "on_start", None, False),
        ("FailsInTraining", "on_training_step", True, False),
        ("FailsInSummaries", "extra_summaries", None, True),
        ("FailsAtStop", "on_stop", True, False),
    ],
)
def test_an_observer_that_raises_ends_the_run_with_its_traceback_and_what_was_learned_is_saved(
    run_trainer: RunTrainer, observer: str, method: str, trains: bool | None, serial: bool
) -> None:
    limit = 3000 if observer == "FailsAtStop" else ENDLESS
    run = run_trainer(observers=f"{WATCHERS}:{observer}", serial_mode=serial, train_for_env_steps=limit)

    run.assert_ended(ExitCode.LEARNER)
    assert f"observer {WATCHERS}:{observer} failed in {method}(): ValueError: no mail server" in run.last_stderr_line
    assert NO_MAIL in run.stderr
    assert run.stderr.count("Traceback (most recent call last):") == 1
    result = run.result()
    assert result["status"] == "failed"
    assert result["env_steps"] == run.saved_env_steps()
    if trains is not None:
        assert (run.saved_env_steps() > 0) == trains
    # In one process, too, where nothing and where something was saved; what is saved depends on no method.
    if observer in ("FailsInInit", "FailsInTraining"):
        again = run_trainer(serial_mode=serial, observers="", train_for_env_steps=run.saved_env_steps() + 1000)
        again.assert_ended(ExitCode.DONE)


def test_observers_and_hooks_that_do_not_exist_are_refused_at_once_before_anything_starts(
    run_trainer: RunTrainer,
) -> None:
    run = run_trainer(
        observers=("no_such_module_here:Watcher", f"{WATCHERS}:lines"), after_train_step=f"{WATCHERS}:forget"
    )

    run.assert_ended(ExitCode.REFUSED)
    for name in ("--observers=no_such_module_here:Watcher", f"--observers={WATCHERS}:lines"):
        assert f"error: {name}: " in run.stderr
    assert f"error: --after_train_step={WATCHERS}:forget: " in run.stderr
    assert "Traceback" not in run.stderr
    assert not run.run_dir.exists()


def test_a_killed_evaluator_ends_the_run_by_name_and_the_run_can_be_resumed(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, eval_interval_sec=1, eval_workers=2)
    wait_until_all_work(run)

    run.kill("sf-eval-1", signal.SIGKILL)

    run.assert_ended(ExitCode.FAULTS)
    assert "sf-eval-1 was killed by SIGKILL" in run.last_stderr_line
    assert run.result()["env_steps"] == run.saved_env_steps() > 0
    assert_resumes(run, run_trainer)
