"""A run ends at its limits, however slow its envs are, and whatever they do when they are closed."""

from __future__ import annotations

import json

import pytest

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.trainer import FAULTY, RunTrainer


def test_limit_of_seconds_ends_a_run_with_a_slow_env(run_trainer: RunTrainer) -> None:
    # One env step takes 0.3 s, so that the first dataset would be full after a minute. Both runs train at once.
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
        assert run.result()["env_steps"] == 0
        assert run.result()["train_seconds"] >= 2.0


def test_limit_of_frames_counts_skipped_frames_and_a_finished_run_says_so(run_trainer: RunTrainer) -> None:
    flags = {"train_for_frames": 8192, "env_frameskip": 4, "num_batches_per_epoch": 1}
    run = run_trainer(**flags).done()

    summary = run.result()
    # The last dataset is learned from as a whole.
    assert 2048 <= summary["env_steps"] < 2048 + 256
    assert summary["frames"] == 4 * summary["env_steps"]
    assert json.loads((run.run_dir / "summary.json").read_text()) == summary

    again = run_trainer(**flags).done()

    assert "this run is finished" in again.stderr
    assert again.result() == summary


@pytest.mark.parametrize(
    ("how", "inference"), [long("raise", "central"), long("exit", "central"), ("hang", "local"), long("raise", "local")]
)
def test_finished_run_survives_an_env_that_cannot_be_closed(run_trainer: RunTrainer, how: str, inference: str) -> None:
    run = run_trainer(
        env="tests.support.envs:Unclosable",
        env_kwargs={"how": how},
        train_for_env_steps=3000,
        inference=inference,
        set_workers_cpu_affinity=False,  # an actor has 3 s to close its envs, on whichever core is free
    ).done()

    assert run.result()["env_steps"] == run.saved_env_steps() >= 3000
    # 2 actors with 8 envs each, all of which were to be closed; one that hangs keeps its actor until it is killed.
    assert run.stderr.count("close() raised") == (0 if how == "hang" else 16)
