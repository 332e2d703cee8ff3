"""Envs that raise or return invalid data: the run continues and counts the faults, and too many of them end it."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.process_states import wait_until_all_work
from tests.support.trainer import RunTrainer, TrainerRun, within

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
FAULTY = "sfactory_envs.synthetic.faulty:Faulty"
LAYOUTS: dict[str, dict[str, Any]] = {
    "central": {"inference": "central"},
    "local": {"inference": "local"},
    "serial": {"serial_mode": True},
}


def once(folder: Path, **fault: int) -> dict[str, object]:
    """Arguments of an env with a fault that happens once in the whole run."""
    return {**fault, "fuse": str(folder / "fuse")}


def assert_recovered(run: TrainerRun, warning: str, restarts: int, bad_data: int) -> None:
    """The run is done, has warned of each fault once, and has counted it in metrics and in its lines."""
    run.assert_ended(ExitCode.DONE)
    last = run.metrics()[-1]
    assert (last["perf/env_restarts"], last["perf/bad_env_data"]) == (restarts, bad_data)
    assert len(re.findall(rf"env \d of sf-actor-\d .*{warning}", run.stderr)) == 1, run.report("no single warning")
    line = [line for line in run.stderr.splitlines() if " sample_fps=" in line][-1]
    for name, count in (("env_restarts", restarts), ("bad_env_data", bad_data)):
        assert (f" {name}={count} " in line) == (count > 0), line
    assert_finite(run)


def assert_finite(run: TrainerRun) -> None:
    """Nothing that is saved, statistics of observations and returns included, is NaN or infinite."""
    loaded = CheckpointDir(run.run_dir / "checkpoint_p0", keep=2).load()
    assert loaded is not None
    tensors = list(tensors_in(loaded.payload))
    assert len(tensors) > 10
    assert all(torch.isfinite(tensor).all() for tensor in tensors)


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


@pytest.mark.parametrize(
    ("layout", "fault", "error"),
    [
        long("central", {"raise_at": 100}, "step 100 raises"),
        ("local", {"raise_at": 100}, "step 100 raises"),
        ("serial", {"raise_at": 100}, "step 100 raises"),
        ("central", {"raise_in_reset": 5}, "reset 5 raises"),
    ],
)
def test_env_that_raises_once_is_recreated(
    run_trainer: RunTrainer, tmp_path: Path, layout: str, fault: dict[str, int], error: str
) -> None:
    run = run_trainer(train_for_env_steps=8_000, env=FAULTY, env_kwargs=once(tmp_path, **fault), **LAYOUTS[layout])

    assert_recovered(run, rf"EnvFault: {error}.* \(1 of --max_env_restarts=20\)", restarts=1, bad_data=0)
    assert "faulty.py" in run.stderr
    for text in (run.stderr, (run.run_dir / "sf_log.txt").read_text()):
        assert text.count("Traceback (most recent call last)") == 1
        assert f"EnvFault: {error}" in text


@pytest.mark.parametrize(
    ("layout", "fault", "reason"),
    [
        long("central", "nan_reward_at", "reward is nan"),
        ("local", "inf_reward_at", "reward is inf"),
        ("central", "nan_obs_at", "observation 'obs' holds NaN or infinity"),
        long("local", "inf_obs_at", "observation 'obs' holds NaN or infinity"),
        ("serial", "nan_obs_at", "observation 'obs' holds NaN or infinity"),
        ("central", "short_obs_at", r"observation 'obs' has shape \(3,\)"),
    ],
)
def test_invalid_data_is_masked(run_trainer: RunTrainer, tmp_path: Path, layout: str, fault: str, reason: str) -> None:
    # Step 100 is within an episode: the final observation of a terminated one is not looked at.
    run = run_trainer(
        train_for_env_steps=8_000,
        env=FAULTY,
        env_kwargs=once(tmp_path, **{fault: 100}),
        normalize_input=True,
        normalize_returns=True,
        **LAYOUTS[layout],
    )

    assert_recovered(run, reason, restarts=0, bad_data=1)
    assert run.result()["episode_length_mean"] == 8


@pytest.mark.parametrize("layout", ["central", long("local"), "serial"])
def test_env_that_raises_again_and_again_ends_the_run_with_its_own_traceback(
    run_trainer: RunTrainer, layout: str
) -> None:
    run = run_trainer(
        train_for_env_steps=ENDLESS, env=FAULTY, env_kwargs={"raise_at": 2}, max_env_restarts=4, **LAYOUTS[layout]
    )

    run.assert_ended(ExitCode.FAULTS)
    error = run.stderr[run.stderr.rindex("error: ") :] if "error: " in run.stderr else run.stderr
    assert "EnvFault: step 2 raises, as ordered" in error
    for words in ("sf-actor-", "raised EnvFault: step 2 raises", "4 of the actor's envs", "--max_env_restarts=4"):
        assert words in run.last_stderr_line, run.report(f"{words!r} is missing in the last line")
    assert run.metrics()[-1]["perf/env_restarts"] >= 4


def test_rewards_that_are_all_nan_end_the_run_with_env_and_count(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, env=FAULTY, env_kwargs={"nan_reward_at": 2})
    run.wait_until("reward is nan")

    run.assert_ended(ExitCode.FAULTS, within(10.0))
    error = r"env \d of sf-actor-\d .*reward is nan; .*\d+ of \d+ env steps .*--max_bad_env_data=0.01"
    assert re.search(error, run.last_stderr_line), run.report("wrong last line")
    means = [row["train/episode_return_mean"] for row in run.metrics()]
    assert all(mean is None or abs(mean) < 100 for mean in means)


@pytest.mark.parametrize(("share", "code"), [(0.0, ExitCode.FAULTS), (1.0, ExitCode.DONE)])
def test_flag_limits_the_share_of_invalid_data(
    run_trainer: RunTrainer, tmp_path: Path, share: float, code: ExitCode
) -> None:
    env_kwargs = {**once(tmp_path, nan_reward_at=50), "fuse_count": 60}
    run = run_trainer(train_for_env_steps=20_000, env=FAULTY, env_kwargs=env_kwargs, max_bad_env_data=share)

    run.assert_ended(code)
    counted = run.metrics()[-1]["perf/bad_env_data"]
    assert 20 <= counted < 60 if code else counted == 60


@pytest.mark.parametrize("layout", [long("central"), "local", "serial"])
def test_ctrl_c_ends_a_run_that_recreates_its_envs(run_trainer: RunTrainer, tmp_path: Path, layout: str) -> None:
    order = tmp_path / "order"
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        env="tests.faults.bad_envs:Unresettable",
        env_kwargs={"order": str(order)},
        max_env_restarts=10**6,
        **LAYOUTS[layout],
    )
    # An actor whose first resets fail ends the run, so all have to have had theirs; a serial run has one process.
    if layout == "serial":
        run.wait_until_training()
    else:
        wait_until_all_work(run)
    order.touch()
    run.wait_until(lambda: run.stderr.count("the level file is gone; ") >= 6)

    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT)
