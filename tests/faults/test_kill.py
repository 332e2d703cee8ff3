"""A process of a run is killed and not replaced: the run ends by its name, cleans up, and can be resumed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.process_states import wait_until_all_work
from tests.support.trainer import ENDLESS, FAULTY, RunTrainer, assert_resumes

EVALUATED = {"eval_interval_sec": 1, "eval_workers": 2}


@pytest.mark.parametrize(
    ("name", "flags", "exit_code"),
    [
        long("sf-actor-1", {}, ExitCode.FAULTS),
        long("sf-actor-1", {"inference": "local"}, ExitCode.FAULTS),
        long("sf-policy-0-0", {}, ExitCode.FAULTS),
        ("sf-learner-0", {}, ExitCode.LEARNER),
        long("sf-eval-1", EVALUATED, ExitCode.FAULTS),
    ],
    ids=str,
)
def test_killed_child_that_is_not_replaced_ends_the_run_by_name(
    run_trainer: RunTrainer, name: str, flags: dict[str, Any], exit_code: ExitCode
) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, max_worker_restarts=0, **flags)
    wait_until_all_work(run)

    run.kill(name, signal.SIGKILL)

    run.assert_ended(exit_code)
    assert f"{name} was killed by SIGKILL" in run.last_stderr_line
    if name == "sf-learner-0":
        assert_resumes(run, run_trainer)
    else:
        assert run.result()["env_steps"] == run.saved_env_steps() > 0


# Even an actor that holds the interpreter lock in C ends with main.
@pytest.mark.parametrize("how", [long("hang_at"), "gil_hang_at"])
def test_killed_main_takes_its_children_along(run_trainer: RunTrainer, tmp_path: Path, how: str) -> None:
    stuck = tmp_path / "stuck"
    run = run_trainer(env=FAULTY, env_kwargs={how: 300, "fuse": str(stuck)}, train_for_env_steps=ENDLESS)
    run.wait_until(stuck.exists)
    run.wait_until_training()

    run.kill("sf-main", signal.SIGKILL)

    assert run.wait() == -signal.SIGKILL
    run.assert_clean()
    assert_resumes(run, run_trainer)
