"""Real runs with options of the learner: auxiliary losses, several batchers, dropped data, observers and hooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sfactory.errors import ExitCode
from sfactory.learner.train_stats import INTRINSIC
from sfactory.messages import TRAIN_STATISTICS
from tests.support.hooks import DIARY, FILE, ROWS, lines
from tests.support.long import long
from tests.support.trainer import ENDLESS, RunTrainer, assert_resumes
from tests.support.warm_process import finished

HOOKS = "tests.support.hooks"
SEESAW = "tests.support.envs:Seesaw"  # episodes are never truncated, so that every row of a dataset is a step
DATASET = 256
CPC = {"use_rnn": True, "rnn_size": 16, "use_cpc": True}
SPECTRAL = {"use_spectral_norm": True, "inference": "local", "amp": "bf16"}


@pytest.mark.parametrize(
    ("flags", "parts", "bounds"),
    [
        ({**CPC, **SPECTRAL}, {"future", "of_future", "of_embedding", "score"}, (0.05, 2.0)),
        long({"rnd": True}, {"normalizer", "target", "predictor", "value"}, (0.0, 20.0)),
    ],
)
def test_run_with_auxiliary_losses_learns_can_be_played_and_resumes(
    run_trainer: RunTrainer, flags: dict[str, Any], parts: set[str], bounds: tuple[float, float]
) -> None:
    run = run_trainer(train_for_env_steps=1_000, **flags).done()

    rows = [row for row in run.metrics() if row.get("train/aux_loss") is not None]
    assert rows
    assert all(bounds[0] < row["train/aux_loss"] < bounds[1] for row in rows)
    assert all((row["train/rnd_reward"] is not None) == ("rnd" in flags) for row in rows)
    assert {name.split(".")[0] for name in run.payload()["auxiliary"]} == parts
    where = (f"--train_dir={run.run_dir.parent}", "--experiment=run")
    played = finished("sfactory.enjoy", *where, "--no_render=True", "--max_num_episodes=2")
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout.splitlines()[-1])["episodes"] == 2
    assert_resumes(run, run_trainer)


@pytest.mark.parametrize(
    ("limit", "epochs", "flags"),
    [
        (3000, 2, {"num_batchers": 2, "minibatch_ring_size": 2, "num_batches_to_accumulate": 4}),
        # 150 passes over each dataset: actors are far ahead, on a busy machine, too.
        (1000, 150, {"learner_queue_policy": "drop_oldest", "num_batches_to_accumulate": 3}),
        (3000, 1, {"replay_proportion": 1.0, "replay_slots": 64}),
    ],
)
def test_trained_dropped_and_replayed_steps_add_up(
    run_trainer: RunTrainer, limit: int, epochs: int, flags: dict[str, Any]
) -> None:
    run = run_trainer(env=SEESAW, train_for_env_steps=limit, num_epochs=epochs, **flags).done()

    row = run.metrics()[-1]
    trained, dropped, replayed = (
        row[f"perf/{name}"] for name in ("trained_env_steps", "dropped_steps", "replayed_steps")
    )
    assert trained >= limit
    assert trained + replayed == DATASET * row["perf/datasets"]
    assert trained + dropped <= row["perf/sampled_env_steps"]
    assert dropped % DATASET == 0
    assert (dropped > 0) == ("learner_queue_policy" in flags)
    low, high = (0.4, 1.0) if "replay_slots" in flags else (0.0, 0.0)
    assert low <= replayed / trained <= high
    if "num_batchers" in flags:  # a dataset that is open at the end is learned from to its end
        assert run.result()["updates"] == epochs * row["perf/datasets"]


@pytest.mark.long
def test_starving_learner_reports_what_each_process_waits_for_and_ends(run_trainer: RunTrainer) -> None:
    env = {"env": "sfactory_envs.synthetic.faulty:Faulty", "env_kwargs": '{"hang_at": 40}'}
    run = run_trainer(**env, learner_starvation_timeout_sec=3.0)

    assert run.wait() == ExitCode.LEARNER, run.report("another end")
    assert "no dataset to learn from for 3 s (--learner_starvation_timeout_sec)" in run.stderr
    assert "sf-actor-0: running, busy for" in run.stderr
    assert run.last_stderr_line.startswith("RESULT failed ")
    run.assert_clean()


@pytest.mark.parametrize("serial", [False, long(True)])
def test_observer_sees_a_run_in_main_and_a_hook_in_its_learner(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, serial: bool
) -> None:
    monkeypatch.setenv(DIARY, str(tmp_path / "hook.jsonl"))
    limits = {"train_for_env_steps": ENDLESS, "experiment_summaries_interval": 0.4}
    flags = {**limits, "num_batches_per_epoch": 2, "num_epochs": 1}
    own = {"observers": (f"{HOOKS}:Diary", f"{HOOKS}:Episodes"), "after_train_step": f"{HOOKS}:note"}
    run = run_trainer(**flags, **own, stats_avg=10**6, serial_mode=serial).done()

    diary = lines(run.run_dir / FILE)
    calls = [line["call"] for line in diary]
    assert calls[:2] == ["on_init", "on_start"]
    assert calls[-1] == "on_stop"
    assert set(calls[2:-1]) == {"on_training_step"}
    facts, steps, end = diary[0], diary[2:-1], diary[-1]
    assert (facts["env"], facts["seed"], facts["obs"], facts["at"]) == ("CartPole-v1", 1, [[4]], 0)
    updates = [step["updates"] for step in steps]
    assert updates == sorted(set(updates))
    assert min(updates) > 0
    assert (end["status"], end["env_steps"]) == ("done", run.result()["env_steps"])
    assert end["saved"] == end["env_steps"]  # summary.json is written before observers end
    # All in main, where stdout belongs to the result.
    assert {line["pid"] for line in diary} == {run.pid}
    assert len(run.stdout.splitlines()) == 1
    assert "an observer says hello" in run.stderr
    rows = run.metrics()
    assert [row["diary/asked"] for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= ROWS

    (sums,), last_row = lines(run.run_dir / "episodes.jsonl"), rows[-1]
    assert sums["pid"] == run.pid
    assert sums["episodes"] == sums["policy_0"] == run.result()["episodes"]
    assert {f"env_{env}" for env in range(16)} < set(sums)  # 2 actors x 8 envs: the run goes on until then
    assert sums["return"] == sums["length"]  # in CartPole
    assert last_row["train/extra/half_length_mean"] == pytest.approx(last_row["train/episode_length_mean"] / 2)
    notes, result = lines(tmp_path / "hook.jsonl"), run.result()
    # The run may end within a dataset, after one of its two updates.
    last = result["updates"]
    assert [note["train_step"] for note in notes] == [*range(2, last, 2), last]
    assert notes[-1]["env_steps"] == result["env_steps"]
    assert all(set(note["stats"]) == set(TRAIN_STATISTICS) - set(INTRINSIC) for note in notes)
    (pid,) = {note["pid"] for note in notes}
    assert (pid == run.pid) == serial
