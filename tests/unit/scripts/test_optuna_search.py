"""The same command of a search by Optuna goes on with its trials, and trains none once all have ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

import sfactory
from scripts import optuna_search
from scripts.optuna_search import CONTINUES, REPORTED, suggested
from sfactory.experiment.run_dir import RunDir


@pytest.fixture(name="trained")
def _trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that have trained, in their order; the score of each is how many there were before it."""
    names: list[str] = []

    def train(flags: Sequence[str], on_report: object) -> SimpleNamespace:
        names.append(next(word.partition("=")[2] for word in flags if word.startswith("--experiment=")))
        summary = SimpleNamespace(episode_return_mean=float(len(names) - 1))
        return SimpleNamespace(status="done", stopped_early=False, summary=summary)

    monkeypatch.setattr(sfactory, "run", train)
    return names


def search(folder: Path, trials: int, *options: str) -> int:
    return optuna_search.main(["--trials", str(trials), "--study", "s", "--train_dir", str(folder), *options, "--"])


def study_in(folder: Path) -> optuna.Study:
    (folder / "s").mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{folder}/s/study.db"
    return optuna.create_study(study_name="s", storage=storage, direction="maximize", load_if_exists=True)


def test_the_same_command_trains_nothing_once_all_trials_have_ended(
    tmp_path: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    study = study_in(tmp_path)
    pruned = study.ask()
    study.tell(pruned, state=optuna.trial.TrialState.PRUNED)
    study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)

    assert search(tmp_path, 2) == 0
    first = json.loads(capsys.readouterr().out)
    assert search(tmp_path, 2) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert search(tmp_path, 1) == 0
    assert trained == ["trial_2"]
    assert search(tmp_path, 3) == 0
    assert trained == ["trial_2", "trial_3"]


def test_a_trial_of_a_killed_process_goes_on_with_its_run_and_one_of_a_live_process_is_left(
    tmp_path: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    study = study_in(tmp_path)
    killed, live, _without_run = (study.ask() for _ in range(3))
    for trial in (killed, live):
        suggested(trial)
    killed.report(3.0, 1)
    killed.report(5.0, 2)
    with RunDir.open(tmp_path / "s", "trial_0"):
        pass

    with RunDir.open(tmp_path / "s", "trial_1"):
        assert search(tmp_path, 2) == 0

    assert trained == ["trial_0", "trial_4"]
    assert [trial.state.name for trial in study.trials] == ["FAIL", "RUNNING", "RUNNING", "COMPLETE", "COMPLETE"]
    again = study.trials[3]
    assert again.params == killed.params
    assert again.user_attrs == {CONTINUES: "trial_0", REPORTED: [3.0, 5.0]}
    assert list(again.intermediate_values.values()) == [3.0, 5.0]
    errors = capsys.readouterr().err
    assert ["trial 1 " in errors, "trial 2 " in errors] == [True, True]


@pytest.mark.usefixtures("trained")
def test_a_search_with_a_seed_that_is_resumed_tries_other_settings_than_before(tmp_path: Path) -> None:
    for folder in (tmp_path / "first", tmp_path / "second"):
        for trials in (1, 2):
            assert search(folder, trials, "--seed=7") == 0

    first, second = ([trial.params for trial in study_in(tmp_path / name).trials] for name in ("first", "second"))
    assert first[0] != first[1]
    assert first == second
