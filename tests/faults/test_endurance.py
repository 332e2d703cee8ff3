"""Many random kills and jumps of the wall clock: a run reaches its goal, and nothing that was saved is ever lost.

Rings wait by the wall clock inside the C++ of faster-fifo. A wait that begins while the clock is an hour ahead is set
for an hour; it has to end when a message comes, and must not keep a run from ending.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import struct
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.errors import ExitCode
from tests.support.trainer import ENDLESS, REAL, RunTrainer, TrainerRun

pytestmark = pytest.mark.long

SOLVED = 475.0
WORKERS = ("sf-actor-0", "sf-actor-1", "sf-policy-0-0")
KILLS, RESTARTS = 100, 200
BATCH = 1024
# What a learner may hold that it has not learned from: datasets that are filled, wait, or are open.
MOST_UNLEARNED = 4 * BATCH
HOUR_S = 3600
SOURCE = Path(__file__).parents[1] / "support" / "stepped_clock.c"
NO_PROGRESS_S = 60.0  # all processes may have to restart


def generations(run: TrainerRun) -> list[dict[str, float]]:
    """The last row of each generation of the run's processes: its counters restart with the next."""
    rows = run.metrics()
    last = [row for row, after in pairwise(rows) if after["perf/sampled_env_steps"] < row["perf/sampled_env_steps"]]
    return [*last, rows[-1]]


def kill_one(run: TrainerRun, dice: random.Random) -> None:
    """Kill a worker that lives; one may be about to be replaced, or all processes about to restart."""
    victims: list[str] = []

    def are_there() -> bool:
        victims[:] = [name for name in run.processes() if name in WORKERS]
        return bool(victims)

    run.wait_until(are_there)
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself, with its generation
        run.kill(dice.choice(victims))
        return
    kill_one(run, dice)


@pytest.mark.timeout(2400)
def test_cartpole_is_solved_although_a_hundred_workers_are_killed(run_trainer: RunTrainer) -> None:
    dice = random.Random(7)
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        num_envs_per_worker=32,
        rollout=32,
        batch_size=BATCH,
        encoder_mlp_layers=(64, 64),
        max_worker_restarts=1000,
        save_every_sec=2,
    )
    run.wait_until_training()

    longest = 0.0
    for _ in range(KILLS):
        time.sleep(dice.uniform(0.2, 2.0))
        rows = len(run.metrics())
        trained = run.metrics()[-1]["perf/trained_env_steps"]
        kill_one(run, dice)
        killed = time.monotonic()
        run.wait_until(
            lambda rows=rows, trained=trained: any(  # type: ignore[misc]
                row["perf/trained_env_steps"] > trained for row in run.metrics()[rows:]
            ),
            within_s=NO_PROGRESS_S,
        )
        longest = max(longest, time.monotonic() - killed)
    run.wait_until(lambda: (run.metrics()[-1]["train/best_episode_return_mean"] or 0.0) >= SOLVED, within_s=300.0)
    run.signal_main(signal.SIGINT)

    assert run.wait() == ExitCode.SIGINT, run.report("wrong exit code")
    assert run.last_stderr_line.startswith("RESULT interrupted "), run.report("wrong last line")
    replaced, restarted = run.stderr.count("; replaced ("), run.stderr.count("from the checkpoint at")
    # A process that is killed while all are about to restart is not replaced.
    assert replaced + restarted >= 0.8 * KILLS
    assert float(str(run.result()["best_episode_return_mean"])) >= SOLVED
    assert "env steps lie in its slots" not in run.stderr, run.report("an actor and its slots disagree about its steps")
    assert_accounts(run)
    run.assert_clean()
    print(f"{KILLS} kills: {replaced} replaced, {restarted} times all, learning again within {longest:.1f} s")


def assert_accounts(run: TrainerRun) -> None:
    """Every generation of processes accounts for its steps.

    It took none that was not received, held or discarded, and learned from what it received, each step once, but for
    what its learner had not come to.
    """
    restarts = re.findall(r"from the checkpoint at (\d+) env steps", run.stderr)
    began_at = [0, *map(int, restarts)]
    found = generations(run)
    assert len(began_at) == len(found)
    for start, row in zip(began_at, found, strict=True):
        received = row["perf/received_steps"]
        assert row["perf/sampled_env_steps"] == received + row["perf/held_steps"] + row["perf/discarded_steps"]
        unlearned = received - (row["perf/trained_env_steps"] - start) - row["perf/dropped_steps"]
        assert 0 <= unlearned <= MOST_UNLEARNED, f"of {received} steps received {unlearned} were not learned from"


@pytest.mark.timeout(7200)
def test_two_hundred_kills_of_all_processes_lose_nothing_that_was_saved(run_trainer: RunTrainer) -> None:
    dice = random.Random(11)
    flags = {"train_for_env_steps": ENDLESS, "save_every_sec": 0.3, "keep_checkpoints": 2}
    saved = resumes = advanced = 0
    for number in range(RESTARTS):
        run = run_trainer(**flags)
        if dice.random() < 0.5:  # killed while it starts
            time.sleep(dice.uniform(0.1, 3.0))
        else:  # while it trains, and saves many times
            run.wait_until("first env step")
            time.sleep(dice.uniform(0.0, 4.0))
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
        resumes, advanced = resumes + bool(resumed), advanced + (now_saved > saved)
        saved = now_saved
    # Otherwise most kills met processes that had only begun to start.
    assert resumes >= 0.35 * RESTARTS
    assert advanced >= 0.25 * RESTARTS
    print(f"{RESTARTS} kills: {resumes} runs went on, {advanced} saved more, {saved:,} env steps in the end")


class WallClock:
    """What all processes of a run see of the wall clock: ``step`` it by seconds against the true one."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler here")
        self._path, library = folder / "clock", folder / "stepped_clock.so"
        self.step(0)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        self.variables = {"LD_PRELOAD": str(library), "SFACTORY_TEST_CLOCK": str(self._path)}

    def step(self, seconds: int) -> None:
        """From now on the clock is off by so many seconds."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(struct.pack("<q", seconds))


def test_run_survives_jumps_of_the_wall_clock(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WallClock(tmp_path)
    for name, value in clock.variables.items():
        monkeypatch.setenv(name, value)
    run = run_trainer(REAL, train_for_env_steps=ENDLESS)
    run.wait_until_training()

    for seconds in (HOUR_S, -HOUR_S, HOUR_S, -HOUR_S):
        clock.step(seconds)
        time.sleep(1.0)
        clock.step(0)
        run.saves_again()
    later = (time.localtime(time.time() + HOUR_S + seconds) for seconds in (0, 100))
    clock.step(HOUR_S)
    # The run has really seen another time.
    run.wait_until("|".join(re.escape(f"[{time.strftime('%Y-%m-%d %H', moment)}") for moment in later))
    clock.step(0)

    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT, 30)
    summary = run.result()
    lasted_s = time.monotonic() - run.started
    assert summary["env_steps"] == run.saved_env_steps() > 0
    assert 0 < summary["train_seconds"] < lasted_s
    assert summary["fps"] == pytest.approx(summary["env_steps"] / summary["train_seconds"])
    rates = [row["perf/fps_10s"] for row in run.metrics() if row.get("perf/fps_10s") is not None]
    assert rates
    assert all(0 <= rate < 1e7 for rate in rates)
