"""A process of a run is killed, or its env raises: the run ends, says which and why, cleans up, and can be resumed."""

from __future__ import annotations

import signal

import pytest

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.process_states import wait_until_all_work
from tests.support.resume import assert_resumes
from tests.support.trainer import RunTrainer

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
FAULTY = "sfactory_envs.synthetic.faulty:Faulty"


def assert_failed_run_says(run_stderr_line: str, *words: str) -> None:
    assert run_stderr_line.startswith("RESULT failed "), run_stderr_line
    for word in words:
        assert word in run_stderr_line
    assert "resume: " in run_stderr_line
    assert "sfactory.train" in run_stderr_line.split("resume: ")[1]


@pytest.mark.parametrize(
    ("name", "inference", "exit_code"),
    [
        long("sf-actor-1", "central", ExitCode.FAULTS, id="actor"),
        pytest.param("sf-actor-1", "local", ExitCode.FAULTS, id="actor with local inference"),
        long("sf-policy-0-0", "central", ExitCode.FAULTS, id="policy worker"),
        pytest.param("sf-learner-0", "central", ExitCode.LEARNER, id="learner"),
    ],
)
def test_a_killed_child_that_is_not_to_be_replaced_ends_the_run_by_name_and_the_run_can_be_resumed(
    run_trainer: RunTrainer, name: str, inference: str, exit_code: ExitCode
) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, inference=inference, max_worker_restarts=0)
    wait_until_all_work(run)

    run.kill(name, signal.SIGKILL)

    run.assert_ended(exit_code)
    assert_failed_run_says(run.last_stderr_line, name, "SIGKILL")
    assert run.result()["status"] == "failed"
    assert_resumes(run, run_trainer)


def test_a_killed_main_takes_its_children_along_and_the_run_can_be_resumed(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS)
    run.wait_until_training()

    run.kill("sf-main", signal.SIGKILL)

    assert run.wait() == -signal.SIGKILL
    run.assert_clean()
    assert_resumes(run, run_trainer)


def test_an_env_that_cannot_be_made_is_refused_before_any_worker_starts(run_trainer: RunTrainer) -> None:
    run = run_trainer(env=FAULTY, env_kwargs={"raise_in_constructor": True})

    run.assert_ended(ExitCode.REFUSED)
    assert "the constructor raises, as ordered" in run.stderr
    assert run.saved_env_steps() == 0
