"""Observers and hooks of a whole run are called, in serial mode too, and what they add is in its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.messages import TRAIN_STATISTICS
from tests.support.hooks import DIARY, FILE, lines
from tests.support.long import LONG, long
from tests.support.trainer import RunTrainer

HOOKS = "tests.support.hooks"


@pytest.mark.parametrize("serial", [False, long(True)])
def test_observer_sees_a_run_from_its_beginning_to_its_end(run_trainer: RunTrainer, serial: bool) -> None:
    flags = {"train_for_seconds": 3, "experiment_summaries_interval": 0.5}
    run = run_trainer(observers=f"{HOOKS}:Diary", serial_mode=serial, **flags).done()

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
    # All in main, where stdout belongs to the result.
    assert {line["pid"] for line in diary} == {run.pid}
    assert len(run.stdout.splitlines()) == 1
    assert "an observer says hello" in run.stderr
    rows = run.metrics()
    assert [row["diary/asked"] for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 3


@pytest.mark.parametrize("serial", [long(False), True])
def test_hook_is_called_in_the_learner_after_each_dataset(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, serial: bool
) -> None:
    monkeypatch.setenv(DIARY, str(tmp_path / "hook.jsonl"))
    flags = {"num_batches_per_epoch": 2, "num_epochs": 1, "train_for_env_steps": 5000}
    run = run_trainer(after_train_step=f"{HOOKS}:note", serial_mode=serial, **flags).done()

    notes, result = lines(tmp_path / "hook.jsonl"), run.result()
    assert [note["train_step"] for note in notes] == list(range(2, result["updates"] + 1, 2))
    assert notes[-1]["env_steps"] == result["env_steps"]
    assert all(set(note["stats"]) == set(TRAIN_STATISTICS) for note in notes)
    (pid,) = {note["pid"] for note in notes}
    assert (pid == run.pid) == serial


@LONG
def test_benchmark_calls_no_observer_and_no_hook(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DIARY, str(tmp_path / "hook.jsonl"))
    own = {"observers": f"{HOOKS}:FailsInStart", "after_train_step": f"{HOOKS}:note"}
    run_trainer(benchmark=True, benchmark_seconds=1, **own).done()

    assert not (tmp_path / "hook.jsonl").exists()
