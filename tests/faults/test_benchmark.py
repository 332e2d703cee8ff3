"""A benchmark that is stopped says so and gives no numbers: half a measurement is none."""

from __future__ import annotations

import signal
import time

import pytest

from sfactory.errors import ExitCode
from tests.support.long import LONG, long
from tests.support.trainer import RunTrainer, TrainerRun, within

pytestmark = pytest.mark.faults

END_S = within(12.0)
LONG_S = 120.0  # enough on a busy machine


def assert_interrupted(run: TrainerRun) -> None:
    run.assert_ended(ExitCode.SIGINT, END_S)
    assert run.stdout == ""
    assert "Traceback" not in run.stderr, run.report("a traceback")


@LONG
def test_ctrl_c_while_a_benchmark_measures_ends_it_without_a_result(run_trainer: RunTrainer) -> None:
    run = run_trainer(benchmark=True, benchmark_seconds=20)
    run.wait_until("warmed up in a moment")
    time.sleep(4.0)  # the measurement begins after 2 s and ends after 22 s

    run.signal_group(signal.SIGINT)

    assert_interrupted(run)


def test_ctrl_c_during_pure_simulation_ends_a_benchmark_without_a_result(run_trainer: RunTrainer) -> None:
    run = run_trainer(benchmark=True, benchmark_seconds=600)
    run.wait_until("pure simulation: ")

    run.signal_group(signal.SIGINT)

    assert_interrupted(run)


FAULTY = "sfactory_envs.synthetic.faulty:Faulty"


@pytest.mark.parametrize("inference", ["central", long("local")])
def test_an_env_that_hangs_while_it_is_sampled_ends_a_benchmark_with_its_name_and_place(
    run_trainer: RunTrainer, inference: str
) -> None:
    env = "tests.support.envs:HangsInActor1"
    run = run_trainer(
        env=env, inference=inference, benchmark=True, sampler_only=True, benchmark_seconds=2, reset_timeout_seconds=5
    )

    run.assert_ended(ExitCode.FAULTS, LONG_S)
    error = f"sf-actor-1 was busy with one step of --env={env} for longer than --reset_timeout_seconds=5"
    assert error in run.last_stderr_line, run.report("wrong last line")
    assert "envs.py" in run.stderr
    assert run.stdout == ""


@LONG
def test_an_env_that_hangs_in_pure_simulation_ends_a_benchmark_with_its_name_and_place(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        env=FAULTY,
        env_kwargs={"hang_at": 20},
        benchmark=True,
        benchmark_stage="env",
        benchmark_seconds=2,
        reset_timeout_seconds=10,
    )

    run.assert_ended(ExitCode.FAULTS, LONG_S)
    assert f"--env={FAULTY} hangs" in run.last_stderr_line, run.report("wrong last line")
    assert "faulty.py" in run.stderr
