"""Beside training the newest policy is evaluated in processes of its own, which change nothing of what is learned."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.errors import ExitCode
from tests.support.learned import what_was_learned
from tests.support.long import LONG, long
from tests.support.process_states import HEADING, ask
from tests.support.trainer import RunTrainer, TrainerRun

ENDLESS = 1_000_000_000
KEYS = {
    "time",
    "env_steps",
    "eval/policy_version",
    "eval/episodes",
    "eval/episode_return_mean",
    "eval/episode_return_min",
    "eval/episode_return_max",
    "eval/episode_length_mean",
}


def evaluations(run: TrainerRun) -> list[dict[str, Any]]:
    """Rows of evaluations."""
    path = run.run_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [row for row in rows if "eval/episodes" in row]


def plays(run: TrainerRun, name: str) -> bool:
    """Whether the evaluator of that name is at an episode: seen twice at work, which it is for moments else."""
    answers = []
    for _ in range(2):
        ask(run)
        answers.append(run.stderr.rpartition(HEADING)[2])
    return all(f"  {name}: running, busy for " in answer for answer in answers)


def stop(run: TrainerRun) -> None:
    """End an endless run as a container's stop does."""
    run.signal_main(signal.SIGTERM)
    assert run.wait() == ExitCode.SIGTERM, run.report("wrong exit code")
    run.assert_clean()


def test_the_newest_policy_is_evaluated_every_second_by_processes_of_their_own(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, eval_interval_sec=1, eval_workers=2, eval_episodes=5)
    run.wait_until(lambda: len(evaluations(run)) >= 3)
    niceness = {name: os.getpriority(os.PRIO_PROCESS, pid) for name, pid in run.processes().items()}
    threads = {
        name: len(list(Path(f"/proc/{pid}/task").iterdir())) for name, pid in run.processes().items() if "eval" in name
    }
    stop(run)

    rows = evaluations(run)
    assert {name for name in niceness if "eval" in name} == {"sf-eval-0", "sf-eval-1"}
    assert niceness["sf-eval-0"] == niceness["sf-eval-1"] == niceness["sf-actor-0"]
    assert set(threads.values()) == {1}
    assert all(set(row) == KEYS for row in rows)
    assert [row["eval/episodes"] for row in rows] == [5] * len(rows)
    versions = [row["eval/policy_version"] for row in rows]
    assert versions == sorted(versions)
    assert 0 <= versions[0] < versions[-1] <= run.result()["updates"]
    for row in rows:
        # CartPole gives 1 for each step.
        assert row["eval/episode_return_mean"] == row["eval/episode_length_mean"]
        assert 1 <= row["eval/episode_return_min"] <= row["eval/episode_return_mean"] <= row["eval/episode_return_max"]
    last = {name.removeprefix("eval/"): value for name, value in rows[-1].items() if name.startswith("eval/")}
    assert run.result()["evaluation"] == {**last, "true_objective_mean": None}
    assert run.stderr.count("evaluation of policy version") >= len(rows)
    assert f"evaluation of policy version {versions[0]}: return" in run.stderr


def test_without_an_interval_nothing_is_evaluated(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=3000)

    assert run.wait() == ExitCode.DONE, run.report("failed")
    assert run.result()["evaluation"] is None
    assert evaluations(run) == []
    assert "sf-eval" not in run.stderr


@pytest.mark.parametrize("inference", ["local", long("central")])
def test_what_is_learned_is_the_same_bit_by_bit_with_and_without_evaluations(
    run_trainer: RunTrainer, inference: str
) -> None:
    # One actor with one split whose slot is a dataset: no turn depends on time.
    common = {
        "async_rl": False,
        "inference": inference,
        "num_workers": 1,
        "num_envs_per_worker": 16,
        "worker_num_splits": 1,
        "learner_num_threads": 1,
        "train_for_env_steps": 40_000,  # the evaluator may be late on a busy machine
    }
    without = run_trainer(experiment="without", **common)
    assert without.wait() == ExitCode.DONE, without.report("failed")
    evaluated = run_trainer(
        experiment="evaluated", eval_interval_sec=0.05, eval_episodes=1, eval_deterministic=False, **common
    )
    assert evaluated.wait() == ExitCode.DONE, evaluated.report("failed")

    assert evaluations(without) == []
    assert len(evaluations(evaluated)) >= 3
    assert torch.equal(what_was_learned(without.run_dir), what_was_learned(evaluated.run_dir))


def test_evaluation_that_does_not_end_is_dropped_with_the_run(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        env="sfactory_envs.synthetic.bandit:Bandit",
        env_kwargs={"length": ENDLESS},
        train_for_env_steps=ENDLESS,
        eval_interval_sec=0.5,
    )
    run.wait_until_training()
    run.wait_until(lambda: plays(run, "sf-eval-0"))

    stop(run)

    assert evaluations(run) == []
    assert run.result()["evaluation"] is None
    assert "dropped, because the run ended before its episodes" in run.stderr


@LONG
def test_a_vector_env_is_evaluated_one_env_at_a_time(run_trainer: RunTrainer) -> None:
    run = run_trainer(env="vector:CartPole-v1", train_for_env_steps=ENDLESS, eval_interval_sec=0.5, eval_episodes=4)
    run.wait_until(lambda: len(evaluations(run)) >= 2)
    stop(run)

    for row in evaluations(run):
        assert row["eval/episodes"] == 4
        assert 1 <= row["eval/episode_length_mean"] == row["eval/episode_return_mean"] <= 500


def test_a_resumed_run_keeps_the_last_evaluation_until_there_is_another(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, eval_interval_sec=0.5)
    run.wait_until(lambda: len(evaluations(run)) >= 1)
    stop(run)
    last = run.result()["evaluation"]

    again = run_trainer(train_for_env_steps=run.result()["env_steps"] + 2000, eval_interval_sec=0)
    assert again.wait() == ExitCode.DONE, again.report("failed")

    assert last is not None
    assert again.result()["evaluation"] == last
