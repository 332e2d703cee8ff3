"""Rings that are not read: a full ring of work ends the run and loses nothing, one of reports blocks no process."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from sfactory.config.flags import config_of
from sfactory.errors import ExitCode
from sfactory.layout import Layout
from sfactory.messages import MAX_REPORT_BYTES
from tests.support.hooks import MOMENT
from tests.support.process_states import wait_until_all_work
from tests.support.processes import eventually
from tests.support.trainer import BANDIT, ENDLESS, RunTrainer, assert_resumes, within

pytestmark = pytest.mark.long

REPORTS = 64  # the ring of reports to main holds so many of the largest
EPISODE_BYTES = 16
LOUD_S = 5.0  # from the fault to the end of the process that meets it, on an idle machine


def test_full_ring_of_work_ends_the_run_by_the_name_of_its_reader(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = tmp_path / "order"
    still = Path(f"{order}.still")
    monkeypatch.setenv(MOMENT, str(order))
    # One thread reads the ring and trains in turn, so that a hook that stands still keeps it from reading. Meanwhile
    # there are more slots to be filled than actors fill before they meet the ring.
    run = run_trainer(
        env="tests.support.envs:SpoilsInbox",
        env_kwargs={"how": "flood", "order": str(order)},
        after_train_step="tests.support.hooks:stand_still",
        train_in_background_thread=False,
        min_traj_buffers_per_worker=64,
        train_for_env_steps=ENDLESS,
    )
    wait_until_all_work(run)
    actors = {run.pid_of(f"sf-actor-{actor}") for actor in range(2)}

    still.touch()
    run.wait_until(Path(f"{order}.done").exists)
    loud = eventually(lambda: not actors <= set(run.processes().values()), within(LOUD_S))
    still.unlink()

    assert loud, run.report("no actor has met the full ring")
    run.assert_ended(ExitCode.FAULTS)
    assert re.search(r"sf-actor-\d failed: .*ChannelFull: the ring of sf-learner-0 is full", run.last_stderr_line)
    assert "its reader stopped reading" in run.last_stderr_line
    assert run.result()["env_steps"] == run.saved_env_steps() > 0
    row = run.metrics()[-1]
    known = row["perf/received_steps"] + row["perf/held_steps"] + row["perf/discarded_steps"]
    assert row["perf/sampled_env_steps"] == known > 0
    order.unlink()
    assert_resumes(run, run_trainer)


def test_main_that_reads_no_reports_blocks_nothing_and_misses_no_episode(run_trainer: RunTrainer) -> None:
    sizes = {"num_workers": 2, "num_envs_per_worker": 256, "worker_num_splits": 2, "rollout": 64, "batch_size": 16_384}
    config = config_of({"env": BANDIT, **sizes})
    run = run_trainer(env=BANDIT, env_kwargs={"length": 1}, **sizes, train_for_env_steps=ENDLESS)
    run.wait_until_training()
    # Every step is an episode: after so many steps the ring is full, whatever was in it.
    enough = 1.2 * REPORTS * MAX_REPORT_BYTES / EPISODE_BYTES

    run.signal_main(signal.SIGSTOP)
    before = run.saved_env_steps()
    run.wait_until(lambda: run.saved_env_steps() > before + enough, 200)
    run.signal_main(signal.SIGCONT)
    layout = Layout.plan(config.sampling, config.learner, "central")
    in_progress = layout.rollout * (layout.num_slots * layout.rows + (layout.datasets + 1) * layout.dataset_rows)
    # What actors could not report then goes with the report of a slot that they finish now.
    since = run.saved_env_steps()
    run.wait_until(lambda: run.saved_env_steps() > since + 2 * in_progress)
    run.signal_main(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT, 60)
    summary = run.result()
    assert summary["env_steps"] > before + enough
    assert summary["env_steps"] <= summary["episodes"] <= summary["env_steps"] + in_progress
