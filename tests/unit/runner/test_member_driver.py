"""A run that is a member of a population of runs takes its turns through the shared folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfactory.config.flags import config_of
from sfactory.experiment.resume import Resumed, ResumedPolicy
from sfactory.experiment.run_dir import RunDir
from sfactory.layout import Layout
from sfactory.messages import EpisodesDone
from sfactory.pbt.event_log import Kind, read_events
from sfactory.pbt.shared_dir import MEMBER_NAME, member_dir
from sfactory.pbt.state import Member, load_state
from sfactory.report.collector import ReportCollector
from sfactory.runner.member_driver import MemberDriver
from sfactory.shared.control import LearnerCommand
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State
from tests.support.parts import VECTOR, small_run

PERIOD = 1000
FLAGS = small_run(workers=1, envs=4, rollout=5, batch_size=20) | {
    "stats_avg": 2,
    "with_pbt": True,
    "pbt_target_objective": "reward",
    "pbt_start_mutation": PERIOD,
    "pbt_period_env_steps": PERIOD,
    "pbt_mutation_rate": 1.0,
}


class Run:
    """A run as main sees it; the test reports what its actors and its learner have reached, and answers commands."""

    def __init__(self, path: Path, number: int, steps: int = 0) -> None:
        config = config_of({**FLAGS, "pbt_dir": str(path / "shared"), "pbt_member": number})
        layout = Layout.plan(config.sampling, config.learner, "central", population=config.population)
        self.number, self.copies = number, member_dir(path / "shared", number)
        self.copies.mkdir(parents=True, exist_ok=True)
        self._shared = SharedObjects(VECTOR, layout, weight_bytes=8)
        resumed = Resumed(steps, policies=(ResumedPolicy(steps),)) if steps else Resumed()
        channels = self._shared.actors_to_main, self._shared.learners_to_main
        self.reports = ReportCollector(config, *channels, self._shared.status, resumed)
        with RunDir.open(path, f"run-{number}") as rundir:
            self.path = rundir.path
            self.driver = MemberDriver(config, 5, resumed, self.reports, self._shared, rundir)
        self.row = self._shared.status.row("sf-learner-0")

    def reach(self, env_steps: int, mean: float | None = None) -> LearnerCommand | None:
        """Report env steps, and episodes of a mean return; returns the command that follows."""
        self.row.set("env_steps", env_steps)
        if mean is not None:
            self._shared.actors_to_main.put(EpisodesDone(0, np.full(2, mean), np.full(2, 10), policy=0))
        return self.look()

    def look(self) -> LearnerCommand | None:
        self.reports.poll()
        self.driver.look()
        return self._shared.learner_commands.waiting(0)

    def answer(self, problem: str = "") -> LearnerCommand | None:
        """The learner has executed the command; returns the next one."""
        self._shared.learner_commands.answered(0, problem)
        return self.look()

    def kinds(self) -> list[Kind]:
        return [event.kind for event in read_events(self.path)]

    def member(self) -> Member:
        state = load_state(self.path)
        assert state is not None
        return state.members[self.number]


def values_of_learner(run: Run) -> dict[str, Any]:
    config = run.driver.config_of(0)
    return {"learning_rate": config.optim.learning_rate, "ppo_clip_ratio": config.algo.ppo_clip_ratio}


def test_a_run_copies_a_better_one_and_is_ranked_by_new_episodes(tmp_path: Path) -> None:
    best, worst = Run(tmp_path, 0), Run(tmp_path, 1)
    assert worst.reach(PERIOD - 1, 1.0) is None
    assert best.reach(PERIOD, 100.0) == LearnerCommand(save=True, copy_to=str(best.copies))
    assert not (best.copies / MEMBER_NAME).exists()  # before the copy is there, there is nothing to tell
    assert best.answer() is None
    assert best.kinds() == [Kind.BEGIN, Kind.KEEP]

    assert worst.reach(PERIOD) == LearnerCommand(save=True, copy_to=str(worst.copies))
    command = worst.answer()

    assert command is not None
    assert (command.save, command.copy_to, command.parent) == (False, None, str(best.copies))
    assert worst.kinds() == [Kind.BEGIN]  # not before the learner has taken over
    assert worst.answer() is None
    event = read_events(worst.path)[-1]
    assert (event.kind, event.policy, event.parent, event.objectives) == (Kind.REPLACE, 1, 0, {0: 100.0, 1: 1.0})
    assert worst.member().hyperparameters == event.hyperparameters == command.hyperparameters
    assert {name: event.hyperparameters[name] for name in values_of_learner(worst)} == values_of_learner(worst)
    assert worst.reports.objectives("reward") == {0: None}
    assert worst.reports.summary("done").best_policy is None

    # Alone at its next turn, since the other one's file stays.
    assert worst.reach(2 * PERIOD, 300.0) is not None
    assert worst.answer() is None
    assert worst.kinds() == [Kind.BEGIN, Kind.REPLACE, Kind.KEEP]


def test_a_resumed_run_continues_its_member_and_waits_for_its_episodes(tmp_path: Path) -> None:
    first = Run(tmp_path, 4)
    first.reach(PERIOD, 1.0)
    first.answer()
    again = Run(tmp_path, 4, steps=PERIOD + 10)

    assert again.member().hyperparameters == first.member().hyperparameters
    assert again.kinds() == [Kind.BEGIN, Kind.KEEP, Kind.RESTORE]
    assert again.reach(2 * PERIOD) is None  # too few episodes, which are not saved
    assert again.reach(2 * PERIOD + 1, 1.0) is not None
    again.answer()
    assert again.kinds()[-1] is Kind.KEEP


def test_a_run_that_is_killed_within_a_turn_takes_it_again(tmp_path: Path) -> None:
    best, killed = Run(tmp_path, 0), Run(tmp_path, 1)
    best.reach(PERIOD, 100.0)
    best.answer()
    killed.reach(PERIOD, 1.0)
    command = killed.answer()  # member-1/member.json is written, and the learner was asked to take over
    again = Run(tmp_path, 1, steps=PERIOD - 10)

    assert again.reach(PERIOD, 1.0) == LearnerCommand(save=True, copy_to=str(again.copies))
    assert again.answer() == command
    assert again.answer() is None
    assert again.kinds() == [Kind.BEGIN, Kind.RESTORE, Kind.REPLACE]


@pytest.mark.parametrize("problem", ["", "the disk is full"])
def test_a_turn_goes_on_without_a_copy_and_a_copy_that_cannot_be_loaded_is_skipped(
    tmp_path: Path, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    best, worst = Run(tmp_path, 0), Run(tmp_path, 1)
    best.reach(PERIOD, 100.0)
    best.answer()
    before = worst.member()
    worst.reach(PERIOD, 1.0)

    assert worst.answer(problem) is not None
    worst.answer("member-0 holds no checkpoint")

    assert (worst.copies / MEMBER_NAME).exists() == (not problem)
    assert problem in caplog.text
    event = read_events(worst.path)[-1]
    assert (event.kind, event.reason) == (Kind.SKIP, "member-0 holds no checkpoint")
    assert worst.member().hyperparameters == before.hyperparameters
    assert worst.member().next_turn == 2 * PERIOD


def test_the_end_records_only_what_was_carried_out(tmp_path: Path) -> None:
    best, worst = Run(tmp_path, 0), Run(tmp_path, 1)
    best.reach(PERIOD, 100.0)
    best.row.set("state", State.DONE)  # while it saves the copy
    assert best.look() == LearnerCommand(save=True, copy_to=str(best.copies))
    best.driver.settle()
    assert best.kinds() == [Kind.BEGIN]

    other = Run(tmp_path, 2)
    other.reach(PERIOD, 50.0)
    other.answer()
    worst.reach(PERIOD, 1.0)
    worst.answer()
    worst.driver.settle()
    assert worst.kinds() == [Kind.BEGIN]
    worst._shared.learner_commands.answered(0)
    worst.driver.settle()
    assert worst.kinds() == [Kind.BEGIN, Kind.REPLACE]
