"""A benchmark or tuning that is stopped, or has an env that fails, ends as a run does, without a result."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from sfactory.errors import ExitCode
from tests.support.long import LONG, long
from tests.support.trainer import RunTrainer, within

END_S = within(12.0)
TUNE = {"autotune": True, "autotune_seconds": 60}


@pytest.mark.parametrize(
    ("flags", "moment", "after_s"),
    [
        long({"benchmark": True, "benchmark_seconds": 20}, "warmed up in a moment", 4.0),
        long({"benchmark": True, "benchmark_seconds": 600}, "pure simulation: ", 0.0),
        (TUNE, "sf-actor-1", 0.0),
    ],
)
def test_ctrl_c_ends_it_at_once_without_a_result(
    run_trainer: RunTrainer, flags: dict[str, Any], moment: str, after_s: float
) -> None:
    run = run_trainer(**flags)
    run.wait_until((lambda: moment in run.processes()) if moment.startswith("sf-") else moment)
    time.sleep(after_s)  # the measurement begins after 2 s and ends after 22 s

    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT, END_S)
    assert "Traceback" not in run.stderr, run.report("a traceback")
    if "benchmark" in flags:
        assert run.stdout == ""
    if "autotune" in flags:  # nothing was chosen, so the resumed run has to tune
        assert "--autotune=True" in run.last_stderr_line.partition("resume: ")[2]
        assert not (run.run_dir / "config.json").exists()


@LONG
@pytest.mark.parametrize("inference", ["central", "local"])
def test_env_that_hangs_while_it_is_sampled_ends_a_benchmark_with_its_place(
    run_trainer: RunTrainer, inference: str
) -> None:
    env = "tests.support.envs:HangsInActor1"
    flags = {"benchmark": True, "sampler_only": True, "benchmark_seconds": 2, "reset_timeout_seconds": 5}
    run = run_trainer(env=env, inference=inference, **flags)

    run.assert_ended(ExitCode.FAULTS)
    error = f"sf-actor-1 was busy with one step of --env={env} for longer than --reset_timeout_seconds=5"
    assert error in run.last_stderr_line, run.report("wrong last line")
    assert "envs.py" in run.stderr
    assert run.stdout == ""
