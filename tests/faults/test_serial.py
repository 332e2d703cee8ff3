"""In one process, too, a run ends as it should: saved after a signal, with the cause after a fault, never for ever."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from tests.support.processes import eventually
from tests.support.trainer import RunTrainer

pytestmark = pytest.mark.faults

ENDLESS = 10**9
ENVS, ROLLOUT = 16, 16  # which make one dataset of 256 steps


def test_ctrl_c_saves_and_the_run_goes_on_from_there(run_trainer: RunTrainer) -> None:
    run = run_trainer(serial_mode=True, train_for_env_steps=ENDLESS)
    run.wait_until_training()

    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT)
    saved = run.saved_env_steps()
    assert run.result()["env_steps"] == saved > 0

    again = run_trainer(serial_mode=True, train_for_env_steps=saved + 5_000)
    again.assert_ended(ExitCode.DONE)
    assert again.result()["env_steps"] >= saved + 5_000
    assert f"resumed at {saved} env steps" in again.stderr


def test_an_env_that_raises_ends_the_run_with_its_traceback_and_saves_what_was_learned(
    run_trainer: RunTrainer,
) -> None:
    run = run_trainer(
        serial_mode=True,
        env="sfactory_envs.synthetic.faulty:Faulty",
        env_kwargs={"raise_at": 200},
        max_env_restarts=0,
        train_for_env_steps=ENDLESS,
    )

    run.assert_ended(ExitCode.FAULTS)
    assert "Traceback" in run.stderr
    assert "sf-actor-0 failed" in run.last_stderr_line
    assert run.saved_env_steps() > 0


def test_a_second_ctrl_c_ends_a_run_whose_env_hangs(run_trainer: RunTrainer, tmp_path: Path) -> None:
    hanging = tmp_path / "hanging"
    run = run_trainer(
        serial_mode=True,
        env="sfactory_envs.synthetic.faulty:Faulty",
        env_kwargs={"hang_at": 300, "fuse": str(hanging)},
        train_for_env_steps=ENDLESS,
    )
    run.wait_until(hanging.exists)

    def has_ended() -> bool:
        return "RESULT " in run.stderr

    # Two that come at once may count as one.
    for _ in range(10):
        if not has_ended():
            run.signal_main(signal.SIGINT)
        if eventually(has_ended, 1.0):
            break

    run.assert_ended(ExitCode.SIGINT)


def test_ctrl_c_ends_a_dataset_that_would_take_hours_and_saves(run_trainer: RunTrainer, tmp_path: Path) -> None:
    steps = tmp_path / "sf-main"
    run = run_trainer(
        serial_mode=True,
        env="tests.support.steps_told:TellsOfStep",
        env_kwargs={"folder": str(tmp_path), "step": ROLLOUT},
        train_for_env_steps=ENDLESS,
        num_epochs=100_000,
        num_batches_per_epoch=1,
        early_stop_loss_change=0,
        save_every_sec=1000,
    )
    run.wait_until(lambda: steps.exists() and steps.read_text().count("\n") == ENVS)

    time.sleep(3.0)  # the dataset has come together, and one of its updates takes some thousandths of a second
    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT)
    assert run.saved_env_steps() == run.result()["env_steps"] == 256
    assert run.result()["updates"] > 10


def test_what_an_env_prints_from_c_does_not_spoil_the_result(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it holds for C's stdout, too

    run = run_trainer(serial_mode=True, env="tests.faults.bad_envs:ChattyInC", train_for_env_steps=2_000)

    run.assert_ended(ExitCode.DONE)
    assert len(run.stdout.strip().splitlines()) == 1
    assert run.result()["status"] == "done"
    assert run.stderr.count("a step was taken in C\n") >= 2_000


def test_an_env_that_calls_sys_exit_fails_the_run_and_saves_what_was_learned(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        serial_mode=True, env="tests.faults.bad_envs:Exiting", env_kwargs={"exit_at": 200}, train_for_env_steps=ENDLESS
    )

    run.assert_ended(ExitCode.FAULTS)
    assert "SystemExit" in run.stderr
    assert "sf-actor-0 failed" in run.last_stderr_line
    assert run.saved_env_steps() > 0
