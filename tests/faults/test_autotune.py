"""A tuning that is stopped, or that finds nothing that works, ends as a run does, and leaves nothing behind."""

from __future__ import annotations

import signal

import pytest

from sfactory.errors import ExitCode
from tests.support.long import LONG, long
from tests.support.trainer import RunTrainer, within

pytestmark = pytest.mark.faults

END_S = within(12.0)
FAULTY = "sfactory_envs.synthetic.faulty:Faulty"


@pytest.mark.parametrize("benchmark", [False, long(True)])
def test_ctrl_c_during_a_trial_ends_everything_at_once(run_trainer: RunTrainer, benchmark: bool) -> None:
    run = run_trainer(autotune=True, autotune_seconds=60, benchmark=benchmark)
    run.wait_until(lambda: "sf-actor-1" in run.processes())

    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT, END_S)
    # Nothing was chosen, so the resumed run has to tune.
    assert "--autotune=True" in run.last_stderr_line.partition("resume: ")[2]
    assert not (run.run_dir / "config.json").exists()
    assert "Traceback" not in run.stderr, run.report("a traceback")


@LONG
def test_an_env_that_fails_with_all_settings_fails_the_run_with_its_first_error(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        env=FAULTY,
        env_kwargs={"raise_at": 20},
        max_env_restarts=0,
        num_envs_per_worker=None,
        autotune=True,
        autotune_seconds=1,
    )

    run.assert_ended(ExitCode.FAULTS)
    assert run.stderr.count("passed over: ") == 3
    assert "EnvFault: step 20 raises, as ordered" in run.last_stderr_line
    assert not (run.run_dir / "config.json").exists()
