"""Real runs with several batchers, a dropping queue, a ring, and a learner that starves."""

from __future__ import annotations

from sfactory.errors import ExitCode
from tests.support.trainer import RunTrainer

SEESAW = "tests.support.envs:Seesaw"
DATASET = 256


def test_two_batchers_bring_every_step_to_the_learner_once(run_trainer: RunTrainer) -> None:
    run = run_trainer(env=SEESAW, train_for_env_steps=6000, num_batchers=2, num_batches_to_accumulate=3)

    assert run.wait() == ExitCode.DONE, run.report("failed")
    row = run.metrics()[-1]
    # Episodes are never truncated, so that every row of a dataset is a step.
    assert row["perf/trained_env_steps"] == DATASET * row["perf/datasets"] >= 6000
    assert row["perf/sampled_env_steps"] >= row["perf/trained_env_steps"]
    assert row["perf/dropped_steps"] == 0
    run.assert_clean()


def test_a_learner_that_is_behind_drops_what_has_waited_longest_and_counts_it(run_trainer: RunTrainer) -> None:
    # 300 passes over each dataset: actors are far ahead, on a busy machine, too.
    run = run_trainer(
        env=SEESAW,
        train_for_env_steps=4000,
        num_epochs=300,
        learner_queue_policy="drop_oldest",
        num_batches_to_accumulate=3,
    )

    assert run.wait() == ExitCode.DONE, run.report("failed")
    row = run.metrics()[-1]
    assert row["perf/dropped_steps"] >= DATASET
    assert row["perf/dropped_steps"] % DATASET == 0
    assert row["perf/trained_env_steps"] == DATASET * row["perf/datasets"] >= 4000
    assert row["perf/trained_env_steps"] + row["perf/dropped_steps"] <= row["perf/sampled_env_steps"]
    run.assert_clean()


def test_a_ring_of_two_learns_from_each_dataset_twice(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        env=SEESAW, train_for_env_steps=4000, minibatch_ring_size=2, num_epochs=2, num_batches_to_accumulate=3
    )

    assert run.wait() == ExitCode.DONE, run.report("failed")
    row = run.metrics()[-1]
    assert row["perf/trained_env_steps"] == DATASET * row["perf/datasets"] >= 4000
    # What is open at the end is learned from whole, too.
    assert run.result()["updates"] == 2 * row["perf/datasets"]
    run.assert_clean()


def test_starving_learner_reports_what_each_process_waits_for_and_ends(run_trainer: RunTrainer) -> None:
    run = run_trainer(env="tests.support.envs:Hangs", learner_starvation_timeout_sec=3.0)

    assert run.wait() == ExitCode.LEARNER, run.report("another end")
    assert "no dataset to learn from for 3 s (--learner_starvation_timeout_sec)" in run.stderr
    assert "no actor has taken a step meanwhile" in run.stderr
    assert "sf-actor-0: running, busy for" in run.stderr
    assert run.last_stderr_line.startswith("RESULT failed ")
    run.assert_clean()
