"""An env that is stuck does not prevent a run from saving and ending, and ends with it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.resume import assert_resumes
from tests.support.trainer import RunTrainer, within

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
FAULTY = "sfactory_envs.synthetic.faulty:Faulty"


def test_an_env_whose_constructor_hangs_is_refused_before_any_worker_starts(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    stuck, limit_s = tmp_path / "stuck", 3
    kwargs = {"hang_in_constructor": True, "fuse": str(stuck)}
    run = run_trainer(env=FAULTY, env_kwargs=kwargs, reset_timeout_seconds=limit_s)
    run.wait_until(stuck.exists)

    run.assert_ended(ExitCode.REFUSED, limit_s + within(2.0))
    assert "--reset_timeout_seconds=3" in run.stderr
    assert "first env step" not in run.stderr


@pytest.mark.parametrize("how", [long("hang_at"), "gil_hang_at"])
def test_a_killed_main_takes_along_an_actor_whose_env_is_stuck(
    run_trainer: RunTrainer, tmp_path: Path, how: str
) -> None:
    stuck = tmp_path / "stuck"
    run = run_trainer(env=FAULTY, env_kwargs={how: 300, "fuse": str(stuck)}, train_for_env_steps=ENDLESS)
    run.wait_until(stuck.exists)
    run.wait_until_training()

    run.kill("sf-main", signal.SIGKILL)

    assert run.wait() == -signal.SIGKILL
    run.assert_clean()


@pytest.mark.parametrize("how", [long("hang_at"), "gil_hang_at"])
def test_sigterm_saves_and_ends_a_run_whose_env_is_stuck(run_trainer: RunTrainer, tmp_path: Path, how: str) -> None:
    stuck = tmp_path / "stuck"
    run = run_trainer(env=FAULTY, env_kwargs={how: 300, "fuse": str(stuck)}, train_for_env_steps=ENDLESS)
    run.wait_until(stuck.exists)
    run.wait_until_training()

    run.signal_main(signal.SIGTERM)

    run.assert_ended(ExitCode.SIGTERM, within(12.0))  # a stop waits 8 s for the actor
    assert run.result()["env_steps"] == run.saved_env_steps() > 0
    assert_resumes(run, run_trainer)
