"""Turns of a population are carried out by learners, and recorded once they have happened."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfactory.config.flags import config_of
from sfactory.experiment.resume import Resumed, ResumedPolicy
from sfactory.experiment.run_dir import RunDir
from sfactory.layout import Layout
from sfactory.messages import EpisodesDone
from sfactory.pbt.event_log import Event, Kind, read_events
from sfactory.pbt.state import Member, load_state
from sfactory.report.collector import ReportCollector
from sfactory.runner.pbt_driver import PbtDriver
from sfactory.shared.control import LearnerCommand
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State, StatusRow
from tests.support.parts import VECTOR, small_run

PERIOD = 1000
FLAGS = small_run(workers=1, envs=6, rollout=5, batch_size=20, worker_num_splits=3) | {
    "stats_avg": 2,
    "num_policies": 3,
    "with_pbt": True,
    "pbt_target_objective": "reward",
    "pbt_start_mutation": PERIOD,
    "pbt_period_env_steps": PERIOD,
    "pbt_mutation_rate": 1.0,
}
BEST, MIDDLE, WORST = 0, 1, 2
SAVE = LearnerCommand(save=True)


class Members:
    """A population; the test reports what its actors and learners have reached, and answers commands."""

    def __init__(
        self, rundir: RunDir, resumed: Resumed, shaping: Mapping[str, Any] | None = None, **flags: Any
    ) -> None:
        config = config_of({**FLAGS, **flags})
        layout = Layout.plan(config.sampling, config.learner, "central", population=config.population)
        self._path, self._shared = (
            rundir.path,
            SharedObjects(VECTOR, layout, weight_bytes=8, shaped=shaping is not None),
        )
        channels = self._shared.actors_to_main, self._shared.learners_to_main
        self.reports = ReportCollector(config, *channels, self._shared.status, resumed)
        self.driver = PbtDriver(config, 5, resumed, self.reports, self._shared, rundir, shaping)

    def row(self, policy: int) -> StatusRow:
        return self._shared.status.row(f"sf-learner-{policy}")

    def all_reach(self, env_steps: int) -> None:
        for policy in range(3):
            self.row(policy).set("env_steps", env_steps)

    def end_episodes(self, returns: dict[int, float]) -> None:
        """As many of each policy as are needed for its mean."""
        for policy, value in returns.items():
            both = np.full(FLAGS["stats_avg"], value)
            self._shared.actors_to_main.put(EpisodesDone(0, both, np.full(len(both), 10), policy=policy))

    def look(self) -> None:
        self.reports.poll()
        self.driver.look()

    def command_to(self, policy: int) -> LearnerCommand | None:
        return self._shared.learner_commands.waiting(policy)

    def reply(self, policy: int, problem: str = "") -> None:
        self._shared.learner_commands.answered(policy, problem)

    def answer(self, *policies: int, problem: str = "") -> None:
        """Reply in turn; main looks after each reply."""
        for policy in policies:
            self.reply(policy, problem)
            self.look()

    def turns(self) -> list[Event]:
        """All that was recorded since the members began."""
        return [event for event in read_events(self._path) if event.kind not in (Kind.BEGIN, Kind.RESTORE)]

    def kinds(self) -> list[tuple[int, Kind]]:
        return [(event.policy, event.kind) for event in self.turns()]

    def member(self, policy: int) -> Member:
        state = load_state(self._path)
        assert state is not None
        return state.members[policy]


@pytest.fixture
def rundir(tmp_path: Path) -> Iterator[RunDir]:
    with RunDir.open(tmp_path, "population") as rundir:
        yield rundir


@pytest.fixture
def ranked(rundir: RunDir) -> Members:
    """All members are due, the best has kept its values, and the middle one's turn is in progress."""
    members = Members(rundir, Resumed())
    members.end_episodes({BEST: 100.0, MIDDLE: 50.0, WORST: 1.0})
    members.all_reach(PERIOD)
    members.look()
    return members


def test_the_best_keeps_its_values_and_turns_come_one_after_the_other(ranked: Members) -> None:
    assert ranked.kinds() == [(BEST, Kind.KEEP)]
    command = ranked.command_to(MIDDLE)
    assert command is not None
    assert (command.save, command.parent) == (False, None)
    assert command.hyperparameters != dict(ranked.member(MIDDLE).hyperparameters)
    assert (ranked.command_to(BEST), ranked.command_to(WORST)) == (None, None)


def test_a_child_takes_over_what_its_parent_has_saved_for_it(ranked: Members, rundir: RunDir) -> None:
    ranked.answer(MIDDLE)
    assert (ranked.command_to(BEST), ranked.command_to(WORST)) == (SAVE, None)
    ranked.answer(BEST)
    command = ranked.command_to(WORST)
    assert command is not None
    assert command.parent == str(rundir.checkpoint_dir(BEST))
    ranked.answer(WORST)

    event = ranked.turns()[-1]
    assert (event.kind, event.policy, event.parent) == (Kind.REPLACE, WORST, BEST)
    assert ranked.member(WORST).hyperparameters == event.hyperparameters == command.hyperparameters
    # The child is ranked by new episodes alone.
    assert ranked.reports.objectives("reward") == {BEST: 100.0, MIDDLE: 50.0, WORST: None}


@pytest.mark.parametrize(("problem", "kind"), [("", Kind.MUTATE), ("the disk is full", Kind.SKIP)])
def test_a_turn_is_recorded_at_the_step_at_which_it_took_effect_or_failed(
    ranked: Members, problem: str, kind: Kind
) -> None:
    before = ranked.member(MIDDLE)
    ranked.row(MIDDLE).set("env_steps", 7 * PERIOD)

    ranked.answer(MIDDLE, problem=problem)

    event = ranked.turns()[-1]
    assert (event.kind, event.policy, event.env_steps) == (kind, MIDDLE, 7 * PERIOD)
    assert ranked.member(MIDDLE).next_turn == 8 * PERIOD
    assert event.reason == (problem or "in the middle")
    assert (ranked.member(MIDDLE).hyperparameters == before.hyperparameters) is (kind is Kind.SKIP)
    assert ranked.command_to(BEST) == SAVE  # others have their turns


@pytest.mark.parametrize("answered", [False, True])
def test_a_limit_cuts_off_a_turn_that_was_not_carried_out(ranked: Members, answered: bool) -> None:
    before = ranked.member(MIDDLE)

    ranked.row(MIDDLE).set("state", State.DONE)
    if answered:
        ranked.answer(MIDDLE)
    else:
        ranked.look()

    assert ranked.kinds() == [(BEST, Kind.KEEP), (MIDDLE, Kind.MUTATE)][: 1 + answered]
    assert (ranked.member(MIDDLE) == before) == (not answered)
    assert ranked.command_to(BEST) == SAVE  # the turn of the worst one has come


def test_the_end_records_only_turns_that_were_carried_out(ranked: Members) -> None:
    ranked.driver.settle()
    assert ranked.kinds() == [(BEST, Kind.KEEP)]

    ranked.reply(MIDDLE)
    ranked.driver.settle()

    assert ranked.kinds() == [(BEST, Kind.KEEP), (MIDDLE, Kind.MUTATE)]


def test_a_parent_that_has_learned_enough_is_not_asked_to_save(ranked: Members, rundir: RunDir) -> None:
    ranked.row(BEST).set("state", State.DONE)

    ranked.answer(MIDDLE)

    command = ranked.command_to(WORST)
    assert command is not None
    assert (ranked.command_to(BEST), command.parent) == (None, str(rundir.checkpoint_dir(BEST)))


def test_turns_reach_all_members_however_short_the_period_is(ranked: Members) -> None:
    # Whenever a turn is over, all other members are due again.
    for beat in range(2, 14):
        for policy in range(3):
            if ranked.command_to(policy) is not None:
                ranked.reply(policy)
        ranked.all_reach(beat * PERIOD)
        ranked.look()

    assert {event.policy for event in ranked.turns() if event.env_steps > PERIOD} == {BEST, MIDDLE, WORST}


def resumed_without(*lost: int) -> Resumed:
    """A session that resumes with the checkpoints of all policies but these."""
    policies = [ResumedPolicy(has_checkpoint=False) if policy in lost else ResumedPolicy(5000) for policy in range(3)]
    return Resumed(sum(policy.env_steps for policy in policies), policies=tuple(policies))


def test_a_member_without_weights_waits_for_the_others_and_takes_over_from_the_best(rundir: RunDir) -> None:
    members = Members(rundir, resumed_without(WORST))
    members.end_episodes({WORST: 1.0})
    members.look()
    assert [members.command_to(policy) for policy in range(3)] == [None] * 3

    members.end_episodes({BEST: 100.0, MIDDLE: 50.0})
    members.look()  # the other members are due, too

    assert members.command_to(BEST) == SAVE
    members.answer(BEST, WORST)
    event = members.turns()[0]
    assert (event.policy, event.parent, event.reason) == (WORST, BEST, "its own weights are lost")


def test_no_member_takes_over_from_one_without_weights(rundir: RunDir) -> None:
    members = Members(rundir, resumed_without(BEST))
    members.end_episodes({BEST: 1000.0, MIDDLE: 50.0})

    # The others have waited long enough for the last one's episodes, and the one without weights still waits.
    members.row(MIDDLE).set("env_steps", 5000 + PERIOD)
    members.look()

    assert members.kinds() == [(MIDDLE, Kind.KEEP)]
    assert members.command_to(BEST) is None


@pytest.mark.parametrize(
    ("lost", "turns", "commands"),
    [
        # The best saves for the middle one, which is the worst of those that learn.
        ((WORST,), [(BEST, Kind.KEEP)], [SAVE, None, None]),
        ((BEST, MIDDLE), [], [None] * 3),  # no member has weights to copy
    ],
)
def test_a_policy_that_does_not_learn_has_no_part_in_turns(
    rundir: RunDir, lost: tuple[int, ...], turns: list[tuple[int, Kind]], commands: list[LearnerCommand | None]
) -> None:
    members = Members(rundir, resumed_without(*lost), train_policies=(BEST, MIDDLE))
    members.end_episodes({BEST: 100.0, MIDDLE: 50.0, WORST: 1.0})

    members.look()

    assert members.kinds() == turns
    assert [members.command_to(policy) for policy in range(3)] == commands


SHAPING = {"pays": {"win": 1.0, "name": "text"}}
OTHER_BEST = {"save_best_metric": "true_objective"}


@pytest.mark.parametrize(
    ("shaping", "flags", "warned"),
    [
        (SHAPING, {}, ["--save_best_metric=reward", "--pbt_target_objective=reward"]),
        (SHAPING, {"save_best_after": 2, "train_for_env_steps": 1}, ["--pbt_target_objective=reward"]),
        (SHAPING, {**OTHER_BEST, "pbt_target_objective": "true_objective"}, ["--pbt_target_objective=true_objective"]),
        (SHAPING, {**OTHER_BEST, "pbt_target_objective": "length"}, []),
        (
            SHAPING,
            {"save_best_metric": "team_return", "pbt_target_objective": "length"},
            ["--save_best_metric=team_return"],
        ),
        (SHAPING, {"pbt_mutation_rate": 0.0}, []),
        ({"pays": {"win": 0.0}}, {}, []),
        (None, {}, []),
    ],
)
def test_returns_that_policies_shape_for_themselves_are_warned_of_once_where_they_decide(
    shaping: Mapping[str, Any] | None,
    flags: dict[str, Any],
    warned: list[str],
    rundir: RunDir,
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = Members(rundir, Resumed(), shaping, **flags)
    members.end_episodes({BEST: 100.0, MIDDLE: 50.0, WORST: 1.0})  # without a true objective
    members.look()
    members.look()

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.partition(": ")[0] for text in warnings] == warned
    assert all("report true_objective in info" in text for text in warnings)
