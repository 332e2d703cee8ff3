"""A run that is started again goes on from what is saved, under the settings it is given now."""

from __future__ import annotations

import json
import re
import signal
import time
from typing import Any

import pytest

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import ExitCode
from tests.support import processes
from tests.support.trainer import RunTrainer, TrainerRun, within

pytestmark = pytest.mark.faults

END_S = within(12.0)
STEPS = 4096
BANDIT = "sfactory_envs.synthetic.bandit:Bandit"


def finished(run: TrainerRun) -> TrainerRun:
    run.assert_ended(ExitCode.DONE)
    return run


def read(run: TrainerRun, name: str) -> dict[str, Any]:
    """A JSON file of the run's directory."""
    content = json.loads((run.run_dir / name).read_text())
    assert isinstance(content, dict)
    return content


def learning_rates(run: TrainerRun) -> list[float]:
    """Every learning rate in metrics.jsonl, in order."""
    rows = run.metrics()
    return [row["train/learning_rate"] for row in rows if row.get("train/learning_rate") is not None]


def test_a_resumed_run_learns_at_the_rate_it_is_given_now(run_trainer: RunTrainer) -> None:
    first = finished(run_trainer(train_for_env_steps=STEPS, learning_rate=0.001))
    before = learning_rates(first)

    again = finished(run_trainer(train_for_env_steps=3 * STEPS, learning_rate=0.0005, adam_beta1=0.5))

    after = learning_rates(again)[len(before) :]
    assert set(before) == {0.001}
    assert set(after) == {0.0005}
    assert after
    assert "--learning_rate=0.0005: the run was started with --learning_rate=0.001" in again.stderr
    loaded = CheckpointDir(again.run_dir / "checkpoint_p0", keep=2).load()
    assert loaded is not None
    groups = loaded.payload["optimizer"]["param_groups"]
    assert [(group["lr"], list(group["betas"])) for group in groups] == [(0.0005, [0.5, 0.999])]


def test_going_on_from_the_best_policy_is_not_remembered(run_trainer: RunTrainer) -> None:
    steps = 20_000  # long enough for main to look at what episodes bring, on a busy machine, too
    flags = {"env": BANDIT, "stats_avg": 10, "save_best_after": 0, "save_best_every_sec": 0}
    finished(run_trainer(**flags, train_for_env_steps=steps))

    from_best = finished(run_trainer(**flags, train_for_env_steps=2 * steps, load_checkpoint_kind="best"))

    resume = from_best.last_stderr_line.partition("resume: ")[2]
    assert "--experiment=run" in resume
    assert "load_checkpoint_kind" not in resume
    best = max(int(path.name.split("_")[2]) for path in from_best.run_dir.glob("checkpoint_p0/best_*.pth"))
    assert from_best.result()["env_steps"] >= best

    latest = from_best.saved_env_steps()
    plain = finished(run_trainer(**flags, train_for_env_steps=3 * steps))

    assert f"resumed at {latest} env steps" in plain.stderr
    assert read(plain, "config.json")["config"]["load_checkpoint_kind"] == "latest"


def interrupt(run: TrainerRun, after_s: float) -> None:
    """Ctrl-C, so many seconds after the program (and not Python alone) is there to answer."""
    run.wait_until(lambda: processes.catches_signal(run.pid, signal.SIGTERM))
    time.sleep(after_s)
    run.signal_group(signal.SIGINT)


def assert_left_as_it_was(run: TrainerRun, saved: int, episodes: int) -> None:
    """The interrupted run tells of what is saved, on every way it has of telling."""
    run.assert_ended(ExitCode.SIGINT, END_S)
    line = re.match(r"RESULT interrupted env_steps=(\d+) ", run.last_stderr_line)
    assert line is not None, run.report("wrong last line")
    assert int(line[1]) >= saved, run.report(f"{saved} were saved")
    result = run.result()
    assert result["status"] == "interrupted"
    for summary in (result, read(run, "summary.json")):
        assert summary["env_steps"] >= saved
        assert summary["episodes"] >= episodes > 0
        assert summary["updates"] > 0
    assert read(run, "run.json")["status"] in ("interrupted", "done")


def test_ctrl_c_while_a_run_is_being_resumed_leaves_it_as_it_was(run_trainer: RunTrainer) -> None:
    earlier = finished(run_trainer(train_for_env_steps=STEPS))
    episodes = earlier.result()["episodes"]

    # From the first line of the program to the first steps.
    for after_s in (0.0, 0.5, 1.5, 2.5):
        saved = earlier.saved_env_steps()
        run = run_trainer(train_for_env_steps=1_000_000_000)
        interrupt(run, after_s)

        assert_left_as_it_was(run, saved, episodes)
