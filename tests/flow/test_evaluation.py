"""Beside training the newest policy is evaluated in processes of its own, which do not change learning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.checkpoint.directory import CheckpointDir
from tests.support.decoder import decode
from tests.support.long import LONG
from tests.support.process_states import HEADING, ask
from tests.support.trainer import ENDLESS, FAULTY, RunTrainer, TrainerRun, learned_by

NUMBERS = ("policy_version", "episodes", *(f"episode_return_{kind}" for kind in ("mean", "min", "max")))
KEYS = {"time", "env_steps", "eval/episode_length_mean", "eval/policy_env_steps", *(f"eval/{name}" for name in NUMBERS)}


def evaluations(run: TrainerRun) -> list[dict[str, Any]]:
    """Rows of evaluations."""
    return [row for row in run.metrics() if "eval/episodes" in row]


def videos_of(run: TrainerRun) -> dict[int, Path]:
    """By the env steps of their policies."""
    return {int(path.stem.removeprefix("eval_")): path for path in sorted(run.run_dir.glob("videos/eval_*.mp4"))}


def plays(run: TrainerRun, name: str) -> bool:
    """Whether the evaluator of that name is at an episode: seen twice at work, which it is for moments else."""
    answers = []
    for _ in range(2):
        ask(run)
        answers.append(run.stderr.rpartition(HEADING)[2])
    return all(f"  {name}: running, busy for " in answer for answer in answers)


def test_newest_policy_is_evaluated_in_intervals_by_other_processes(run_trainer: RunTrainer) -> None:
    more: dict[str, Any] = {"save_best_metric": "eval_return", "save_best_after": 0, "with_tensorboard": True}
    # Episodes are short, as one of each evaluation is drawn.
    evaluating = {"eval_interval_sec": 0.5, "eval_workers": 2, "eval_episodes": 5, "eval_video": True}
    evaluating["max_episode_steps"] = 25
    run = run_trainer(train_for_env_steps=ENDLESS, **evaluating, **more)
    # The second video is due at a tenth more env steps than the first: at many more, if evaluators began late.
    run.wait_until(lambda: len(evaluations(run)) >= 3 and len(videos_of(run)) >= 2)
    processes = run.processes()
    evaluators = {name for name in processes if "eval" in name}
    niceness = {name: os.getpriority(os.PRIO_PROCESS, pid) for name, pid in processes.items()}
    # Of the one that draws nothing: pygame has a thread of its own.
    threads = len(list(Path(f"/proc/{processes['sf-eval-1']}/task").iterdir()))
    run.stop()

    rows = evaluations(run)
    assert evaluators == {"sf-eval-0", "sf-eval-1"}
    assert niceness["sf-eval-0"] == niceness["sf-eval-1"] == niceness["sf-actor-0"]
    assert threads == 1
    assert all(set(row) == KEYS for row in rows)
    assert [row["eval/episodes"] for row in rows] == [5] * len(rows)
    versions = [row["eval/policy_version"] for row in rows]
    assert versions == sorted(versions)
    assert 0 <= versions[0] < versions[-1] <= run.result()["updates"]
    for row in rows:
        # CartPole gives 1 for each step.
        assert row["eval/episode_return_mean"] == row["eval/episode_length_mean"]
        assert 1 <= row["eval/episode_return_min"] <= row["eval/episode_return_mean"] <= row["eval/episode_return_max"]
    numbers = {name.removeprefix("eval/"): value for name, value in rows[-1].items() if name.startswith("eval/")}
    last = {**numbers, "true_objective_mean": None}
    assert run.result()["evaluation"] == last
    steps = [row["eval/policy_env_steps"] for row in rows]
    assert all(0 <= of_policy <= row["env_steps"] for of_policy, row in zip(steps, rows, strict=True))
    for of_policy, version in zip(steps, versions, strict=True):
        assert f"evaluation of the policy after {of_policy:,} env steps (version {version}): return" in run.stderr

    # The best checkpoint has what was evaluated as the best. The run may have ended before the last one was judged.
    loaded = CheckpointDir(run.run_dir / "checkpoint_p0", 2).load("best")
    assert loaded is not None
    saved = loaded.payload["best_objective"], loaded.payload["train_step"]
    means = [(row["eval/episode_return_mean"], row["eval/policy_version"]) for row in rows]
    assert saved in [max(judged, key=lambda each: each[0]) for judged in (means[:-1], means)]

    videos = videos_of(run)
    (events,) = run.run_dir.glob("events.out.tfevents.*")
    assert len(videos) >= 2
    assert all(f"video videos/{path.name}" in run.stderr for path in videos.values())
    # The end of the run may have dropped the evaluation of the last one.
    assert {of_policy for of_policy in videos if of_policy <= steps[-1]} <= set(steps)
    assert len(videos.keys() - set(steps)) <= 1
    assert events.read_bytes().count(b"eval/video") == len(videos)
    assert all(2 <= len(decode(path).pictures) <= 26 for path in videos.values())

    # A resumed run keeps the last evaluation until there is another.
    limit = run.result()["env_steps"] + 2000
    again = run_trainer(train_for_env_steps=limit, eval_interval_sec=0, save_best_metric="reward").done()

    assert again.result()["evaluation"] == last


@pytest.mark.long
@pytest.mark.parametrize("inference", ["local", "central"])
def test_evaluations_do_not_change_what_is_learned(run_trainer: RunTrainer, inference: str) -> None:
    # One actor with one split; a slot is a dataset: no turn depends on time.
    common = {
        "async_rl": False,
        "inference": inference,
        "num_workers": 1,
        "num_envs_per_worker": 16,
        "worker_num_splits": 1,
        "learner_num_threads": 1,
        "train_for_env_steps": 40_000,  # the evaluator may be late on a busy machine
    }
    without = run_trainer(experiment="without", **common).done()
    often = {"eval_interval_sec": 0.05, "eval_episodes": 1, "eval_deterministic": False}
    evaluated = run_trainer(experiment="evaluated", **often, **common).done()

    assert evaluations(without) == []
    assert without.result()["evaluation"] is None
    assert "sf-eval" not in without.stderr
    assert len(evaluations(evaluated)) >= 3
    assert torch.equal(learned_by(without), learned_by(evaluated))


def test_killed_evaluator_is_replaced_and_an_evaluation_that_does_not_end_is_dropped_with_the_run(
    run_trainer: RunTrainer,
) -> None:
    env = {"env": FAULTY, "env_kwargs": {"length": ENDLESS, "step_seconds": 1e-3}}
    run = run_trainer(**env, train_for_env_steps=ENDLESS, eval_interval_sec=0.5)
    run.wait_until_training()
    run.wait_until(lambda: plays(run, "sf-eval-0"))
    killed = run.pid_of("sf-eval-0")
    run.kill("sf-eval-0")
    run.wait_until("sf-eval-0 was killed by SIGKILL.*; replaced")
    run.wait_until(lambda: plays(run, "sf-eval-0"))
    assert run.pid_of("sf-eval-0") != killed

    run.stop()

    assert evaluations(run) == []
    assert run.result()["evaluation"] is None
    assert "dropped, because the run ended before its episodes" in run.stderr


@LONG
def test_vector_env_is_evaluated_one_env_at_a_time(run_trainer: RunTrainer) -> None:
    run = run_trainer(env="vector:CartPole-v1", train_for_env_steps=ENDLESS, eval_interval_sec=0.5, eval_episodes=4)
    run.wait_until(lambda: len(evaluations(run)) >= 2)
    run.stop()

    for row in evaluations(run):
        assert row["eval/episodes"] == 4
        assert 1 <= row["eval/episode_length_mean"] == row["eval/episode_return_mean"] <= 500
