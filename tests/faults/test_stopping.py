"""A run ends at a signal and at its limits, however long one dataset or one env step takes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from sfactory.config.schema import LearnerConfig, SamplingConfig
from sfactory.errors import ExitCode
from sfactory.layout import Layout
from tests.support.long import LONG, long
from tests.support.trainer import RunTrainer, within

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
END_S = within(12.0)  # a stop waits 8 s for the last checkpoint, and then ends the run anyway
FAULTY = "sfactory_envs.synthetic.faulty:Faulty"
BANDIT = "sfactory_envs.synthetic.bandit:Bandit"


def test_ctrl_c_ends_a_dataset_that_would_take_hours_and_saves(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        num_epochs=100_000,
        early_stop_loss_change=0,
        num_batches_per_epoch=1,
        save_every_sec=1000,
        save_best_after=0,
    )
    run.wait_until("first env step")
    # The steps of a dataset count after the first pass over it; the last one would be done after hours.
    run.wait_until(lambda: run.stderr.count(" env_steps=256 ") > 4)
    assert run.saved_env_steps() == 0

    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT, END_S)
    assert run.result()["status"] == "interrupted"
    # The one dataset that had been begun: all of it was learned from, many times over, and counts once.
    assert run.result()["env_steps"] == run.saved_env_steps() == 256
    assert run.result()["updates"] > 10


def test_a_limit_of_seconds_ends_a_run_whose_env_is_slow(run_trainer: RunTrainer) -> None:
    # One env step takes 0.3 s, so that the first dataset would be full after a minute. Both runs go on at once.
    runs = [
        run_trainer(
            experiment=f"in_background_{in_background}",
            env=FAULTY,
            env_kwargs={"step_seconds": 0.3},
            num_envs_per_worker=2,
            train_for_seconds=2,
            train_in_background_thread=in_background,
        )
        for in_background in (False, True)
    ]

    for run in runs:
        run.assert_ended(ExitCode.DONE)
        assert run.result()["status"] == "done"
        assert run.result()["env_steps"] == 0
        assert run.result()["train_seconds"] >= 2.0


def test_a_limit_of_frames_counts_skipped_frames_and_a_finished_run_says_so(run_trainer: RunTrainer) -> None:
    flags = {"train_for_frames": 8192, "env_frameskip": 4, "num_batches_per_epoch": 1}
    run = run_trainer(**flags)

    run.assert_ended(ExitCode.DONE)
    summary = run.result()
    # The last dataset is learned from as a whole.
    assert 2048 <= summary["env_steps"] < 2048 + 256
    assert summary["frames"] == 4 * summary["env_steps"]
    assert json.loads((run.run_dir / "summary.json").read_text()) == summary

    again = run_trainer(**flags)

    again.assert_ended(ExitCode.DONE)
    assert "this run is finished" in again.stderr
    assert again.result() == summary


@LONG
def test_every_episode_of_one_step_is_counted(run_trainer: RunTrainer) -> None:
    # A slot holds 256 x 32 steps, each of them an episode: more than fit into one report.
    sampling = SamplingConfig(num_workers=2, num_envs_per_worker=512, worker_num_splits=2, rollout=32)
    learner = LearnerConfig(batch_size=16_384)
    run = run_trainer(
        env=BANDIT,
        env_kwargs={"length": 1},
        num_workers=sampling.num_workers,
        num_envs_per_worker=sampling.num_envs_per_worker,
        rollout=sampling.rollout,
        batch_size=learner.batch_size,
        train_for_env_steps=300_000,
    )

    run.assert_ended(ExitCode.DONE)
    summary = run.result()
    layout = Layout.plan(sampling, learner, "central")
    under_way = layout.rollout * (layout.num_slots * layout.rows + (layout.datasets + 1) * layout.dataset_rows)
    assert summary["env_steps"] <= summary["episodes"] <= summary["env_steps"] + under_way
    assert summary["episode_length_mean"] == 1.0


def test_a_batch_that_fits_no_memory_is_refused_by_name(run_trainer: RunTrainer) -> None:
    run = run_trainer(batch_size=3_200_000_000_000)

    run.assert_ended(ExitCode.REFUSED)
    assert "--batch_size" in run.stderr
    assert "MiB" in run.stderr
    assert "Traceback" not in run.stderr, run.report("a traceback")
    assert run.processes() == {}


@pytest.mark.parametrize(
    ("how", "inference"), [("raise", "central"), long("exit", "central"), ("hang", "local"), long("raise", "local")]
)
def test_a_run_that_is_done_is_not_undone_by_an_env_that_cannot_be_closed(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch, how: str, inference: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    run = run_trainer(
        env="bad_envs:Unclosable",
        env_kwargs={"how": how},
        train_for_env_steps=3000,
        inference=inference,
        set_workers_cpu_affinity=False,  # an actor has 3 s to close its envs, on whichever core is free
    )

    run.assert_ended(ExitCode.DONE)
    assert run.result()["env_steps"] == run.saved_env_steps() >= 3000
    # 2 actors with 8 envs each, all of which were to be closed; one that hangs keeps its actor until it is killed.
    assert run.stderr.count("close() raised") == (0 if how == "hang" else 16)


@pytest.mark.parametrize("single", [True, long(False)])
def test_a_library_that_an_env_brings_along_computes_on_one_thread_if_that_is_wanted(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, single: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    run = run_trainer(
        env="bad_envs:LateLibrary",
        env_kwargs={"folder": str(tmp_path)},
        num_envs_per_worker=2,  # an actor has 3 s to close its envs, each of which looks at all libraries
        batch_size=64,
        train_for_env_steps=3000,
        force_envs_single_thread=single,
        set_workers_cpu_affinity=False,
    )

    run.assert_ended(ExitCode.DONE)
    threads = [json.loads((tmp_path / f"sf-actor-{actor}").read_text()) for actor in range(2)]
    usual = min(2, len(os.sched_getaffinity(0)))
    assert threads == [[1 if single else usual]] * 2
