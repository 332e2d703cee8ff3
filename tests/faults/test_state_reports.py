"""SIGUSR1 asks a run for the state of its processes: it describes every one, and continues."""

from __future__ import annotations

import signal
from itertools import takewhile
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.long import long
from tests.support.process_states import HEADING, wait_until_all_work
from tests.support.trainer import ENDLESS, FAULTY, RunTrainer, TrainerRun, within

NAMES = ("sf-learner-0", "sf-policy-0-0", "sf-actor-0", "sf-actor-1", "sf-main")


def answers(run: TrainerRun) -> list[str]:
    """The dumps on stderr so far, each without its heading and what was logged after it."""
    logged = [text.splitlines()[1:] for text in run.stderr.split(HEADING)[1:]]
    return ["\n".join(takewhile(lambda line: line.startswith("  "), lines)) for lines in logged]


def assert_described(answer: str) -> None:
    lines = answer.splitlines()
    for name in NAMES:
        (line,) = [line for line in lines if line.startswith(f"  {name}:")]
        assert "wait for it" in line, line
    actor = next(line for line in lines if line.startswith("  sf-actor-0:"))
    assert "slots: " in actor
    assert "env steps" in actor


@pytest.mark.parametrize("serial", [False, long(True)])
def test_run_describes_every_process_and_continues(run_trainer: RunTrainer, serial: bool) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, serial_mode=serial)
    run.wait_until(lambda: processes.catches_signal(run.pid, signal.SIGUSR1))
    run.signal_group(signal.SIGUSR1)  # while it starts: it answers once it can
    run.wait_until_training()
    run.wait_until(lambda: len(answers(run)) == 1)
    wait_until_all_work(run)
    asked, before = len(answers(run)), run.processes()

    for count in (asked + 1, asked + 2):
        run.signal_group(signal.SIGUSR1)
        run.wait_until(lambda due=count: len(answers(run)) == due)  # type: ignore[misc]

    for _ in range(2):  # a save may have been in progress already
        run.saves_again()
    assert run.processes() == before
    run.stop()
    for answer in answers(run):
        assert_described(answer)
    assert serial or all(": running, " in answer for answer in answers(run)[asked:])
    assert HEADING in (run.run_dir / "sf_log.txt").read_text()


@pytest.mark.parametrize("how", [long("hang_at"), "gil_hang_at"])
def test_run_with_a_stuck_env_says_which_actor_is_busy_saves_and_ends(
    run_trainer: RunTrainer, tmp_path: Path, how: str
) -> None:
    stuck = tmp_path / "stuck"
    run = run_trainer(env=FAULTY, env_kwargs={how: 300, "fuse": str(stuck)}, train_for_env_steps=ENDLESS)
    run.wait_until(stuck.exists)
    run.wait_until_training()

    run.signal_main(signal.SIGUSR1)
    run.wait_until(lambda: len(answers(run)) == 1)
    run.stop(within_s=within(12.0))  # a stop waits 8 s for the actor

    (answer,) = answers(run)
    assert_described(answer)
    assert [line for line in answer.splitlines() if line.startswith("  sf-actor-") and "running, busy for" in line]
    assert run.result()["env_steps"] == run.saved_env_steps() > 0
