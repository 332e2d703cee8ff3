"""Kills at random, many of them: a run reaches its goal, and nothing that was saved is ever lost."""

from __future__ import annotations

import random
import re
import signal
import time
from itertools import pairwise

import pytest

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import ExitCode
from tests.support.trainer import RunTrainer, TrainerRun

pytestmark = [pytest.mark.faults, pytest.mark.faults_long]

ENDLESS = 1_000_000_000
SOLVED = 475.0
WORKERS = ("sf-actor-0", "sf-actor-1", "sf-policy-0-0")
KILLS, RESTARTS = 100, 200


def generations(run: TrainerRun) -> list[dict[str, float]]:
    """The last row of each generation of the run's processes: its counters begin anew with the next."""
    rows = run.metrics()
    last = [row for row, after in pairwise(rows) if after["perf/sampled_env_steps"] < row["perf/sampled_env_steps"]]
    return [*last, rows[-1]]


@pytest.mark.timeout(1800)
def test_cartpole_is_solved_although_a_hundred_workers_are_killed(run_trainer: RunTrainer) -> None:
    dice = random.Random(7)
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        num_envs_per_worker=32,
        rollout=32,
        batch_size=1024,
        encoder_mlp_layers=(64, 64),
        max_worker_restarts=1000,
        save_every_sec=2,
    )
    run.wait_until_training()

    for _ in range(KILLS):
        time.sleep(dice.uniform(0.2, 2.0))
        alive = [name for name in run.processes() if name in WORKERS]
        if alive:
            run.kill(dice.choice(alive))
    run.wait_until(lambda: run.metrics()[-1]["train/best_episode_return_mean"] >= SOLVED, within_s=300.0)
    run.signal_main(signal.SIGINT)

    assert run.wait() == ExitCode.SIGINT, run.report("wrong exit code")
    assert run.stderr.count("replaced (") + run.stderr.count("start anew") >= 0.8 * KILLS
    assert float(str(run.result()["best_episode_return_mean"])) >= SOLVED
    for row in generations(run):
        known = row["perf/received_steps"] + row["perf/held_steps"] + row["perf/discarded_steps"]
        assert row["perf/sampled_env_steps"] == known
    run.assert_clean()


@pytest.mark.timeout(7200)
def test_nothing_that_was_saved_is_lost_although_all_processes_are_killed_two_hundred_times(
    run_trainer: RunTrainer,
) -> None:
    dice = random.Random(11)
    flags = {"train_for_env_steps": ENDLESS, "save_every_sec": 0.3, "keep_checkpoints": 2}
    saved = 0
    for number in range(RESTARTS):
        run = run_trainer(**flags)
        # The longer ones train and save many times, the shorter ones are killed while they start.
        ended = time.monotonic() + dice.choice([dice.uniform(0.1, 3.0), dice.uniform(3.0, 9.0)])
        while time.monotonic() < ended:
            time.sleep(0.05)
        run.signal_group(signal.SIGKILL)

        assert run.wait() == -signal.SIGKILL
        run.assert_clean()
        resumed = [int(steps) for steps in re.findall(r"resumed at (\d+) env steps", run.stderr)]
        if resumed:
            assert resumed == [saved], f"start {number} went on from {resumed}, and {saved} had been saved"
        elif saved:
            assert "first env step" not in run.stderr, f"start {number} began at nothing, and {saved} had been saved"
        loaded = CheckpointDir(run.run_dir / "checkpoint_p0", keep=2).load()
        now_saved = 0 if loaded is None else int(loaded.payload["env_steps"])
        assert now_saved >= saved, f"start {number} lost what was saved"
        saved = now_saved
    assert saved > 0
