"""Real runs with several batchers, a dropping queue, minibatches that are used twice, and a learner without data."""

from __future__ import annotations

from sfactory.errors import ExitCode
from tests.support.trainer import RunTrainer

SEESAW = "tests.support.envs:Seesaw"  # episodes are never truncated, so that every row of a dataset is a step
DATASET = 256


def test_two_batchers_and_a_ring_of_two_learn_from_every_step_twice(run_trainer: RunTrainer) -> None:
    flags = {"num_batchers": 2, "minibatch_ring_size": 2, "num_epochs": 2, "num_batches_to_accumulate": 3}
    run = run_trainer(env=SEESAW, train_for_env_steps=6000, **flags).done()

    row = run.metrics()[-1]
    assert row["perf/trained_env_steps"] == DATASET * row["perf/datasets"] >= 6000
    assert row["perf/sampled_env_steps"] >= row["perf/trained_env_steps"]
    assert row["perf/dropped_steps"] == 0
    # What is open at the end is learned from whole, too.
    assert run.result()["updates"] == 2 * row["perf/datasets"]


def test_learner_that_is_behind_drops_the_oldest_data_and_counts_it(run_trainer: RunTrainer) -> None:
    # 300 passes over each dataset: actors are far ahead, on a busy machine, too.
    flags = {"num_epochs": 300, "learner_queue_policy": "drop_oldest", "num_batches_to_accumulate": 3}
    run = run_trainer(env=SEESAW, train_for_env_steps=4000, **flags).done()

    row = run.metrics()[-1]
    assert row["perf/dropped_steps"] >= DATASET
    assert row["perf/dropped_steps"] % DATASET == 0
    assert row["perf/trained_env_steps"] == DATASET * row["perf/datasets"] >= 4000
    assert row["perf/trained_env_steps"] + row["perf/dropped_steps"] <= row["perf/sampled_env_steps"]


def test_starving_learner_reports_what_each_process_waits_for_and_ends(run_trainer: RunTrainer) -> None:
    run = run_trainer(env="tests.support.envs:Hangs", learner_starvation_timeout_sec=3.0)

    run.assert_ended(ExitCode.LEARNER)
    assert "no dataset to learn from for 3 s (--learner_starvation_timeout_sec)" in run.stderr
    assert "no actor has taken a step meanwhile" in run.stderr
    assert "sf-actor-0: running, busy for" in run.stderr
