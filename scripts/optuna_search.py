"""Searches settings of a run with Optuna, as an example.

    python scripts/optuna_search.py --trials 20 -- --env=CartPole-v1 --train_for_env_steps=200000

Each trial is one run, ``trial_<number>`` in the folder of the study, which trains in this process. Its rows are
reported to Optuna while it trains, and a run that is worse than the median of the earlier ones at the same report (they
come every few seconds) is ended, which Optuna calls pruned. What Optuna knows is in ``study.db`` beside the runs: the
same command resumes it, and a run that was interrupted or killed, until ``--trials`` of them have ended in all.
Needs ``pip install -e '.[optuna]'``.

The searched settings are in ``suggested``; for another search, copy this file and change these lines.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
from optuna.trial import TrialState

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import sfactory
from scripts.command import split_flags
from sfactory.experiment.run_dir import is_held

SCORE = "train/episode_return_mean"
REPORT_FLAG = "--experiment_summaries_interval"
REPORT_S = 2.0  # unless the flags say something else
# Attributes of a trial: the run that it resumes, and the reports of that run.
CONTINUES, REPORTED = "experiment", "reported"


def suggested(trial: optuna.Trial) -> dict[str, object]:
    """The settings that a trial tries."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
        "exploration_loss_coeff": trial.suggest_float("exploration_loss_coeff", 1e-4, 1e-1, log=True),
        "num_epochs": trial.suggest_int("num_epochs", 1, 4),
    }


class InterruptedTrialError(Exception):
    """A signal came while a trial trained, and its run was saved."""


class Objective:
    """The score of a trial: the mean return of its last episodes. exit_code: of a run that a signal has ended, or 0."""

    def __init__(self, flags: Sequence[str], folder: Path) -> None:
        """``flags``: of every run; ``folder``: takes the runs."""
        self._flags, self._folder = list(flags), folder
        self.exit_code = 0

    def __call__(self, trial: optuna.Trial) -> float:
        """Train; raises TrialPruned if Optuna has ended the run, InterruptedTrialError if a signal has."""
        watch = Watch(trial)
        result = sfactory.run([*self._flags, *_words(suggested(trial)), *_words(self._where(trial))], on_report=watch)
        if result.status == "interrupted":
            self.exit_code = int(result.exit_code)
            trial.study.stop()
            enqueue_again(trial.study, trial, watch.reported)
            raise InterruptedTrialError
        if result.stopped_early:
            raise optuna.TrialPruned
        score = result.summary.episode_return_mean
        if score is None:
            raise optuna.TrialPruned("no episode has ended; train for longer")
        return score

    def _where(self, trial: optuna.Trial) -> dict[str, object]:
        return {"train_dir": self._folder, "experiment": experiment_of(trial)}


def experiment_of(trial: optuna.Trial | optuna.trial.FrozenTrial) -> str:
    """The run of a trial."""
    return str(trial.user_attrs.get(CONTINUES, f"trial_{trial.number}"))


def enqueue_again(
    study: optuna.Study, trial: optuna.Trial | optuna.trial.FrozenTrial, reported: Sequence[float]
) -> None:
    """Let another trial go on with the run of this one, which has reported these scores."""
    attributes = {CONTINUES: experiment_of(trial), REPORTED: list(reported)}
    study.enqueue_trial(trial.params, user_attrs=attributes)


def take_over_killed(study: optuna.Study, folder: Path) -> None:
    """Enqueue again the trials of processes that were killed: no process holds their runs in ``folder``."""
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        if is_held(folder / experiment_of(trial)):
            why = "another process trains it, or was killed before its run began"
            print(f"trial {trial.number} is left, and not counted: {why}", file=sys.stderr)
            continue
        enqueue_again(study, trial, [score for _, score in sorted(trial.intermediate_values.items())])
        study.tell(trial.number, state=TrialState.FAIL)


class Watch:
    """Tells Optuna how a run stands, and the run whether it is to go on. reported: scores, in their order."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial
        self.reported: list[float] = []
        for score in trial.user_attrs.get(REPORTED, []):
            self._report(score)

    def __call__(self, row: Mapping[str, float | None]) -> bool:
        """Whether it continues after this row."""
        score = row.get(SCORE)
        if score is None:  # no episode has ended yet, or it is a row of something else
            return True
        self._report(score)
        return not self._trial.should_prune()

    def _report(self, score: float) -> None:
        self.reported.append(score)
        # Optuna compares what was reported with the same number, which env steps of two runs never are.
        self._trial.report(score, len(self.reported))


def _words(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def main(argv: Sequence[str]) -> int:
    """Search as ``argv`` says; returns the exit code."""
    own, flags = split_flags(argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="how many runs, with those of earlier calls")
    parser.add_argument("--study", default="optuna", help="name of the study, and of its folder")
    parser.add_argument("--train_dir", type=Path, default=Path("train_dir"), help="takes the folder of the study")
    parser.add_argument("--seed", type=int, default=None, help="of the search")
    options = parser.parse_args(own)
    folder = options.train_dir / options.study
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=options.study,
        storage=f"sqlite:///{folder / 'study.db'}",
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
    )
    # A sampler forgets what it has drawn: with the same seed a resumed search would try the same settings again.
    seed = None if options.seed is None else options.seed + len(study.trials)
    study.sampler = optuna.samplers.TPESampler(seed=seed)
    if not any(word.startswith(REPORT_FLAG) for word in flags):
        flags.append(f"{REPORT_FLAG}={REPORT_S}")
    objective = Objective(flags, folder)
    take_over_killed(study, folder)
    ended = len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE, TrialState.PRUNED]))
    study.optimize(objective, n_trials=max(0, options.trials - ended), catch=(InterruptedTrialError,))
    if objective.exit_code:
        print("interrupted; the same command resumes the run and the search", file=sys.stderr)
        return objective.exit_code
    finished = study.get_trials(states=[TrialState.COMPLETE])
    if not finished:
        print("error: no run has reached its end; a study needs --trials, and runs a limit", file=sys.stderr)
        return 1
    best = study.best_trial
    best_trial = {"trial": best.number, "experiment": experiment_of(best), "score": best.value, "settings": best.params}
    print(json.dumps(best_trial))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
