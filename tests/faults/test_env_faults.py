"""Envs that raise or return invalid data: the run continues and counts the faults, and too many of them end it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.process_states import wait_until_all_work
from tests.support.trainer import ENDLESS, FAULTY, RunTrainer, TrainerRun, tensors_in, within

LAYOUTS: dict[str, dict[str, Any]] = {
    "central": {"inference": "central"},
    "local": {"inference": "local"},
    "serial": {"serial_mode": True},
}


def assert_recovered(run: TrainerRun, warning: str, restarts: int, bad_data: int) -> None:
    """The run is done, has warned of each fault once, has counted it, and has saved finite numbers alone."""
    run.assert_ended(ExitCode.DONE)
    last = run.metrics()[-1]
    assert (last["perf/env_restarts"], last["perf/bad_env_data"]) == (restarts, bad_data)
    assert len(re.findall(rf"env \d of sf-actor-\d .*{warning}", run.stderr)) == 1, run.report("no single warning")
    line = [line for line in run.stderr.splitlines() if " sample_fps=" in line][-1]
    for name, count in (("env_restarts", restarts), ("bad_env_data", bad_data)):
        assert (f" {name}={count} " in line) == (count > 0), line
    payload = run.payload()
    del payload["best_objective"]  # which is infinite until there is one
    assert torch.isfinite(torch.cat(tensors_in(payload))).all()


@pytest.mark.parametrize(
    ("layout", "fault", "error"),
    [
        ("local", "raise_at", "step 100 raises"),
        long("serial", "raise_at", "step 100 raises"),
        ("central", "raise_in_reset", "reset 5 raises"),
    ],
)
def test_env_that_raises_once_is_recreated(
    run_trainer: RunTrainer, tmp_path: Path, layout: str, fault: str, error: str
) -> None:
    kwargs = {fault: 5 if fault == "raise_in_reset" else 100, "fuse": str(tmp_path / "fuse")}
    run = run_trainer(train_for_env_steps=4_000, env=FAULTY, env_kwargs=kwargs, **LAYOUTS[layout])

    assert_recovered(run, rf"EnvFault: {error}.* \(1 of --max_env_restarts=20\)", restarts=1, bad_data=0)
    assert "faulty.py" in run.stderr
    for text in (run.stderr, (run.run_dir / "sf_log.txt").read_text()):
        assert text.count("Traceback (most recent call last)") == 1
        assert f"EnvFault: {error}" in text


@pytest.mark.parametrize(
    ("layout", "fault", "reason"),
    [
        long("local", "inf_reward_at", "reward is inf"),
        ("serial", "nan_obs_at", "observation 'obs' holds NaN or infinity"),
        ("central", "short_obs_at", r"observation 'obs' has shape \(3,\)"),
    ],
)
def test_invalid_data_is_masked(run_trainer: RunTrainer, tmp_path: Path, layout: str, fault: str, reason: str) -> None:
    # Step 100 is within an episode: the final observation of a terminated one is not looked at.
    kwargs = {fault: 100, "fuse": str(tmp_path / "fuse")}
    normalized = {"normalize_input": True, "normalize_returns": True}
    run = run_trainer(train_for_env_steps=4_000, env=FAULTY, env_kwargs=kwargs, **normalized, **LAYOUTS[layout])

    assert_recovered(run, reason, restarts=0, bad_data=1)
    assert run.result()["episode_length_mean"] == 8


@pytest.mark.parametrize("layout", ["central", long("local"), long("serial")])
def test_env_that_always_raises_ends_the_run_with_its_traceback(run_trainer: RunTrainer, layout: str) -> None:
    flags = {"env_kwargs": {"raise_at": 2}, "max_env_restarts": 4, **LAYOUTS[layout]}
    run = run_trainer(train_for_env_steps=ENDLESS, env=FAULTY, **flags)

    run.assert_ended(ExitCode.FAULTS)
    assert "EnvFault: step 2 raises, as ordered" in run.stderr[run.stderr.rindex("error: ") :]
    for words in ("sf-actor-", "raised EnvFault: step 2 raises", "4 of the actor's envs", "--max_env_restarts=4"):
        assert words in run.last_stderr_line, run.report(f"{words!r} is missing in the last line")
    assert run.metrics()[-1]["perf/env_restarts"] >= 4


@pytest.mark.parametrize(("layout", "how"), [("local", "shape"), long("central", "raise"), long("serial", "nan")])
def test_env_whose_every_episode_ends_by_a_late_fault_fails_the_run(
    run_trainer: RunTrainer, layout: str, how: str
) -> None:
    # Fewer steps than --max_bad_env_data allows, and fewer exceptions than --max_env_restarts.
    flags = {"env_kwargs": {"how": how, "at": 150}, "max_env_restarts": 19, **LAYOUTS[layout]}
    run = run_trainer(train_for_env_steps=ENDLESS, env="tests.support.envs:FailsLate", **flags)

    run.assert_ended(ExitCode.FAULTS)
    assert re.search(r"env \d of sf-actor-\d .*; so ended the last \d+ episodes of the run", run.last_stderr_line)
    assert run.result()["episodes"] == 0


def test_rewards_that_are_all_nan_end_the_run_with_env_and_count(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, env=FAULTY, env_kwargs={"nan_reward_at": 2}, num_workers=1)
    run.wait_until("reward is nan")

    run.assert_ended(ExitCode.FAULTS, within(10.0))
    error = r"env \d of sf-actor-\d .*reward is nan; .*\d+ of \d+ env steps .*--max_bad_env_data=0.01"
    assert re.search(error, run.last_stderr_line), run.report("wrong last line")
    assert "Traceback" not in run.stderr  # the lines of sfactory tell nothing about the env
    means = [row["train/episode_return_mean"] for row in run.metrics()]
    assert all(mean is None or abs(mean) < 100 for mean in means)


@pytest.mark.parametrize("layout", ["local", long("serial")])
def test_ctrl_c_ends_a_run_that_recreates_its_envs(run_trainer: RunTrainer, tmp_path: Path, layout: str) -> None:
    order = tmp_path / "order"
    env = {"env": "tests.support.envs:Unresettable", "env_kwargs": {"order": str(order)}}
    run = run_trainer(train_for_env_steps=ENDLESS, **env, max_env_restarts=10**6, **LAYOUTS[layout])
    # An actor ends the run if its first resets fail, so all have to have had theirs.
    wait_until_all_work(run)
    order.touch()
    run.wait_until(lambda: run.stderr.count("the level file is gone; ") >= 3)

    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT)


def test_env_that_calls_sys_exit_fails_a_serial_run_that_saves(run_trainer: RunTrainer) -> None:
    run = run_trainer(serial_mode=True, env="tests.support.envs:Exiting", train_for_env_steps=ENDLESS)

    run.assert_ended(ExitCode.FAULTS)
    assert "SystemExit" in run.stderr
    assert "sf-actor-0 failed" in run.last_stderr_line
    assert run.saved_env_steps() > 0


def test_prints_of_an_env_from_c_do_not_spoil_the_result(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it holds for C's stdout, too
    run = run_trainer(serial_mode=True, env="tests.support.envs:ChattyInC", train_for_env_steps=2_000).done()

    assert len(run.stdout.strip().splitlines()) == 1
    assert run.stderr.count("a step was taken in C\n") >= 2_000


@pytest.mark.parametrize("layout", ["local", "serial"])
def test_what_an_env_sets_for_its_process_does_not_reach_the_policy(
    run_trainer: RunTrainer, tmp_path: Path, layout: str
) -> None:
    train_dir = os.path.relpath(tmp_path / "train_dir")  # the env changes the current directory
    env = "tests.support.envs:Meddling"
    run = run_trainer(env=env, train_dir=train_dir, train_for_env_steps=1500, **LAYOUTS[layout]).done()

    payload = run.payload()
    assert payload["env_steps"] >= 1500
    assert {tensor.dtype for name, tensor in payload["model"].items() if "weight" in name} == {torch.float32}
    assert run.stderr.count("turned warnings into errors") >= 1
