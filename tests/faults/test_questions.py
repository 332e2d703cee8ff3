"""SIGUSR1 asks a run how it stands: it tells of every process, and goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from tests.support import processes
from tests.support.long import long
from tests.support.process_states import HEADING
from tests.support.trainer import RunTrainer, TrainerRun

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
NAMES = ("sf-learner-0", "sf-policy-0-0", "sf-actor-0", "sf-actor-1", "sf-main")


def answers(run: TrainerRun) -> list[str]:
    """The dumps on stderr so far, each without its heading."""
    return run.stderr.split(HEADING)[1:]


def assert_described(answer: str, *names: str) -> None:
    lines = answer.splitlines()
    for name in names:
        (line,) = [line for line in lines if line.startswith(f"  {name}:")]
        assert "wait for it" in line, line
    actor = next(line for line in lines if line.startswith("  sf-actor-0:"))
    assert "slots: " in actor
    assert "env steps" in actor


def assert_goes_on(run: TrainerRun) -> None:
    """It trains on in the same processes, and ends at a signal."""
    before = run.processes()
    for _ in range(2):  # a save may have been under way already
        saved = run.saved_env_steps()
        run.wait_until(lambda saved=saved: run.saved_env_steps() > saved)  # type: ignore[misc]
    assert run.processes() == before
    run.signal_main(signal.SIGTERM)
    run.assert_ended(ExitCode.SIGTERM)


@pytest.mark.parametrize("to_group", [long(False), True])
def test_a_run_that_is_asked_tells_of_every_process_and_goes_on(run_trainer: RunTrainer, to_group: bool) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS)
    run.wait_until_training()
    run.wait_until(lambda: set(run.processes()) >= set(NAMES))
    before = run.processes()

    for count in (1, 2):
        if to_group:
            run.signal_group(signal.SIGUSR1)
        else:
            run.signal_main(signal.SIGUSR1)
        run.wait_until(lambda due=count: len(answers(run)) == due)  # type: ignore[misc]

    assert run.processes() == before
    assert_goes_on(run)
    for answer in answers(run):
        assert_described(answer, *NAMES)
        assert ": running, " in answer
    assert HEADING in (run.run_dir / "sf_log.txt").read_text()


def test_a_run_in_one_process_tells_of_its_rooms_and_goes_on(run_trainer: RunTrainer) -> None:
    run = run_trainer(serial_mode=True, train_for_env_steps=ENDLESS)
    run.wait_until_training()

    run.signal_main(signal.SIGUSR1)

    run.wait_until(lambda: len(answers(run)) == 1)
    assert_goes_on(run)
    (answer,) = answers(run)
    assert_described(answer, *NAMES)


def test_a_run_that_is_asked_while_it_starts_answers_once_it_can_and_trains_to_its_end(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=3_000)
    run.wait_until(lambda: processes.catches_signal(run.pid, signal.SIGUSR1))

    run.signal_group(signal.SIGUSR1)

    run.assert_ended(ExitCode.DONE, 120)
    (answer,) = answers(run)
    assert_described(answer, *NAMES)


def test_a_run_whose_env_is_stuck_tells_who_is_busy(run_trainer: RunTrainer, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    run = run_trainer(
        env="sfactory_envs.synthetic.faulty:Faulty",
        env_kwargs={"gil_hang_at": 300, "fuse": str(stuck)},
        train_for_env_steps=ENDLESS,
    )
    run.wait_until(stuck.exists)

    run.signal_main(signal.SIGUSR1)

    run.wait_until(lambda: len(answers(run)) == 1)
    assert_described(answers(run)[0], *NAMES)
    assert "sf-actor-" in run.stderr
    run.signal_main(signal.SIGTERM)
    run.assert_ended(ExitCode.SIGTERM, 30)
    (answer,) = answers(run)
    assert [line for line in answer.splitlines() if line.startswith("  sf-actor-") and "running, busy for" in line]
