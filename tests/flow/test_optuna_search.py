"""The example of a search by Optuna searches, and prunes the runs that Optuna gives up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import optuna

from scripts.optuna_search import Objective
from sfactory.experiment.summary import Summary
from tests.support.launches import SHORT
from tests.support.long import LONG
from tests.support.processes import eventually
from tests.support.source import ROOT
from tests.support.trainer import to_argv, within

FLAGS = to_argv({**SHORT, "serial_mode": True})


@LONG
def test_interrupted_search_resumes_its_run(tmp_path: Path) -> None:
    options = ["--trials", "1", "--study", "halted", "--train_dir", str(tmp_path)]
    argv = [sys.executable, "scripts/optuna_search.py", *options, "--", *FLAGS, "--train_for_seconds=12"]
    rows = tmp_path / "halted" / "trial_0" / "metrics.jsonl"

    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as first:
        assert eventually(lambda: rows.exists() and bool(rows.read_text()), within(30.0))
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=within(15.0))
    again = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=within(60.0))

    assert first.returncode == 130, errors
    assert "the same command" in errors
    assert again.returncode == 0, again.stderr
    study = optuna.load_study(study_name="halted", storage=f"sqlite:///{tmp_path}/halted/study.db")
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]
    interrupted, finished = study.trials
    assert interrupted.params == finished.params
    # What it had reported before comes first.
    before, after = (list(trial.intermediate_values.values()) for trial in (interrupted, finished))
    assert 0 < len(before) < len(after)
    assert after[: len(before)] == before
    best = json.loads(again.stdout.splitlines()[-1])
    assert (best["experiment"], best["score"]) == ("trial_0", finished.values[0])
    config = json.loads(rows.with_name("config.json").read_text())["config"]
    assert {name: config[name] for name in finished.params} == finished.params
    assert [path.name for path in rows.parents[1].iterdir() if path.is_dir()] == ["trial_0"]
    summary = Summary.read(rows.with_name("summary.json"))
    assert summary is not None
    assert (summary.status, summary.episode_return_mean) == ("done", finished.values[0])


def test_run_that_optuna_gives_up_is_ended_and_its_trial_pruned(tmp_path: Path) -> None:
    study = optuna.create_study(
        direction="maximize", pruner=optuna.pruners.ThresholdPruner(lower=2.0, n_warmup_steps=2)
    )

    # Returns of the bandit are at most 1: from its second report on every run is hopeless.
    study.optimize(Objective([*FLAGS, "--train_for_env_steps=1000000000"], tmp_path), n_trials=1)

    (trial,) = study.trials
    assert trial.state is optuna.trial.TrialState.PRUNED
    assert 2 <= len(trial.intermediate_values) <= 4
    summary = Summary.read(tmp_path / "trial_0" / "summary.json")
    assert summary is not None
    assert (summary.status, summary.updates > 0) == ("done", True)
