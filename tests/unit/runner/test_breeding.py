"""Turns of a population, carried out: who is ordered what and when, and what is recorded once it has happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfactory.config.flags import config_of
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.layout import Layout
from sfactory.messages import EpisodesDone
from sfactory.pbt.event_log import Event, Kind, read_events
from sfactory.pbt.state import Member, load_state
from sfactory.report.collector import ReportCollector
from sfactory.runner.pbt_driver import PbtDriver
from sfactory.shared.control import LearnerCommand
from sfactory.shared.status import State, StatusRow
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR

PERIOD = 1000
FLAGS: dict[str, Any] = {
    "env": "any",
    "num_workers": 1,
    "num_envs_per_worker": 6,
    "worker_num_splits": 3,
    "rollout": 5,
    "batch_size": 20,
    "stats_avg": 2,
    "num_policies": 3,
    "with_pbt": True,
    "pbt_target_objective": "reward",
    "pbt_start_mutation": PERIOD,
    "pbt_period_env_steps": PERIOD,
    "pbt_mutation_rate": 1.0,
}
BEST, MIDDLE, WORST = 0, 1, 2
FRESH = Resumed()


class Farm:
    """A population whose actors and learners are the test: it says what they have reached, and answers orders."""

    def __init__(self, rundir: RunDir, resumed: Resumed, **flags: Any) -> None:
        config = config_of({**FLAGS, **flags})
        layout = Layout.plan(config.sampling, config.learner, "central", population=config.population)
        self._path, self._shared = rundir.path, SharedObjects(VECTOR, layout, weight_bytes=8)
        channels = self._shared.actors_to_main, self._shared.learners_to_main
        self.reports = ReportCollector(config, *channels, self._shared.status, resumed)
        found = PbtDriver.of(config, 5, resumed, self.reports, self._shared, rundir)
        assert found is not None
        self.pbt_driver = found

    def row(self, policy: int) -> StatusRow:
        return self._shared.status.row(f"sf-learner-{policy}")

    def all_reach(self, env_steps: int) -> None:
        for policy in range(3):
            self.row(policy).set("env_steps", env_steps)

    def end_episodes(self, **returns: float) -> None:
        """As many as a mean is of, of the policies that are named."""
        for name, value in returns.items():
            policy = {"best": BEST, "middle": MIDDLE, "worst": WORST}[name]
            both = np.full(FLAGS["stats_avg"], value)
            self._shared.actors_to_main.put(EpisodesDone(0, both, np.full(len(both), 10), policy=policy))

    def look(self) -> None:
        self.reports.poll()
        self.pbt_driver.look()

    def order_to(self, policy: int) -> LearnerCommand | None:
        """What its learner is to do."""
        assert self._shared.orders is not None
        return self._shared.orders.waiting(policy)

    def answer(self, policy: int, problem: str = "") -> None:
        assert self._shared.orders is not None
        self._shared.orders.answered(policy, problem)

    def turns(self) -> list[Event]:
        """All that was recorded since the members began."""
        return [event for event in read_events(self._path) if event.kind not in (Kind.BEGIN, Kind.RESTORE)]

    def member(self, policy: int) -> Member:
        state = load_state(self._path)
        assert state is not None
        return state.members[policy]


@pytest.fixture
def rundir(tmp_path: Path) -> Iterator[RunDir]:
    with RunDir.open(tmp_path, "herd") as rundir:
        yield rundir


def ranked(rundir: RunDir) -> Farm:
    """A population whose members all have their first turn, and that has begun with the middle one's."""
    farm = Farm(rundir, FRESH)
    farm.end_episodes(best=100.0, middle=50.0, worst=1.0)
    farm.all_reach(PERIOD)
    farm.look()
    return farm


def test_the_best_keeps_what_it_has_at_once_and_others_one_after_the_other(rundir: RunDir) -> None:
    farm = ranked(rundir)

    (kept,) = farm.turns()
    assert (kept.policy, kept.kind) == (BEST, Kind.KEEP)
    order = farm.order_to(MIDDLE)
    assert order is not None
    assert (order.save, order.parent) == (False, None)
    assert order.hyperparameters != dict(farm.member(MIDDLE).hyperparameters)
    assert (farm.order_to(BEST), farm.order_to(WORST)) == (None, None)


def test_a_child_takes_over_what_its_parent_has_saved_for_it(rundir: RunDir) -> None:
    farm = ranked(rundir)
    farm.answer(MIDDLE)

    farm.look()
    assert farm.order_to(BEST) == LearnerCommand(save=True)
    assert farm.order_to(WORST) is None
    farm.answer(BEST)
    farm.look()
    order = farm.order_to(WORST)
    assert order is not None
    assert order.parent == str(rundir.checkpoint_dir(BEST))
    farm.answer(WORST)
    farm.look()

    event = farm.turns()[-1]
    assert (event.kind, event.policy, event.parent) == (Kind.REPLACE, WORST, BEST)
    assert farm.member(WORST).hyperparameters == event.hyperparameters == order.hyperparameters


def test_a_turn_is_recorded_at_the_step_at_which_it_took_effect(rundir: RunDir) -> None:
    farm = ranked(rundir)

    farm.row(MIDDLE).set("env_steps", 7 * PERIOD)
    farm.answer(MIDDLE)
    farm.look()

    event = farm.turns()[-1]
    assert (event.kind, event.policy, event.env_steps) == (Kind.MUTATE, MIDDLE, 7 * PERIOD)
    assert farm.member(MIDDLE).next_turn == 8 * PERIOD


def test_who_has_taken_over_is_ranked_by_new_episodes_alone(rundir: RunDir) -> None:
    farm = ranked(rundir)
    for policy in (MIDDLE, BEST, WORST):
        farm.answer(policy)
        farm.look()

    assert farm.reports.objectives("reward") == {BEST: 100.0, MIDDLE: 50.0, WORST: None}


def test_what_a_learner_cannot_do_is_skipped_and_others_have_their_turns(rundir: RunDir) -> None:
    farm = ranked(rundir)
    before = farm.member(MIDDLE)

    farm.answer(MIDDLE, "the disk is full")
    farm.look()

    event = farm.turns()[-1]
    assert (event.kind, event.policy, event.reason) == (Kind.SKIP, MIDDLE, "the disk is full")
    assert farm.member(MIDDLE).hyperparameters == before.hyperparameters
    assert farm.order_to(BEST) == LearnerCommand(save=True)


def test_a_turn_that_a_limit_cuts_off_is_not_used_up(rundir: RunDir) -> None:
    farm = ranked(rundir)
    before = farm.member(MIDDLE)

    farm.row(MIDDLE).set("state", State.DONE)
    farm.look()

    assert [event.policy for event in farm.turns()] == [BEST]
    assert farm.member(MIDDLE) == before
    assert farm.order_to(BEST) == LearnerCommand(save=True)  # the worst one's turn has come


def test_what_was_carried_out_just_before_a_limit_is_recorded(rundir: RunDir) -> None:
    farm = ranked(rundir)

    farm.answer(MIDDLE)
    farm.row(MIDDLE).set("state", State.DONE)
    farm.look()

    assert [(event.policy, event.kind) for event in farm.turns()] == [(BEST, Kind.KEEP), (MIDDLE, Kind.MUTATE)]


def test_at_the_end_what_was_carried_out_is_recorded_and_what_was_not_comes_again(rundir: RunDir) -> None:
    farm = ranked(rundir)
    farm.pbt_driver.settle()
    assert [event.policy for event in farm.turns()] == [BEST]

    farm.answer(MIDDLE)
    farm.pbt_driver.settle()

    assert [event.policy for event in farm.turns()] == [BEST, MIDDLE]


def test_a_parent_that_has_learned_enough_has_saved_already(rundir: RunDir) -> None:
    farm = ranked(rundir)
    farm.row(BEST).set("state", State.DONE)

    farm.answer(MIDDLE)
    farm.look()

    assert farm.order_to(BEST) is None
    order = farm.order_to(WORST)
    assert order is not None
    assert order.parent == str(rundir.checkpoint_dir(BEST))


def test_a_member_without_weights_waits_for_the_others_and_takes_over_from_the_best(rundir: RunDir) -> None:
    farm = Farm(rundir, Resumed(10_000, steps_of_policies=(5000, 5000, 0), policies_without_checkpoint=(WORST,)))
    farm.end_episodes(worst=1.0)
    farm.look()
    assert [farm.order_to(policy) for policy in range(3)] == [None] * 3

    farm.end_episodes(best=100.0, middle=50.0)
    farm.look()  # the others' turns are due, too

    assert farm.order_to(BEST) == LearnerCommand(save=True)
    farm.answer(BEST)
    farm.look()
    farm.answer(WORST)
    farm.look()
    event = farm.turns()[0]
    assert (event.policy, event.parent, event.reason) == (WORST, BEST, "its own weights are lost")


def test_where_all_that_learn_have_lost_their_weights_they_begin_anew(rundir: RunDir) -> None:
    resumed = Resumed(500, steps_of_policies=(0, 0, 500), policies_without_checkpoint=(BEST, MIDDLE))
    farm = Farm(rundir, resumed, train_policies=(BEST, MIDDLE))
    farm.end_episodes(best=100.0, middle=50.0, worst=1.0)

    farm.look()

    assert [farm.order_to(policy) for policy in range(3)] == [None] * 3
    assert farm.turns() == []


def test_who_does_not_learn_takes_over_from_nobody(rundir: RunDir) -> None:
    resumed = Resumed(10_000, steps_of_policies=(5000, 5000, 0), policies_without_checkpoint=(WORST,))
    farm = Farm(rundir, resumed, train_policies=(BEST, MIDDLE))
    farm.end_episodes(best=100.0, middle=50.0, worst=1.0)

    farm.look()

    assert [(event.policy, event.kind) for event in farm.turns()] == [(BEST, Kind.KEEP)]
    assert farm.order_to(BEST) == LearnerCommand(
        save=True
    )  # for the middle one, which is the worst of those that learn
    assert farm.order_to(WORST) is None


def test_all_have_their_turns_however_short_the_period_is(rundir: RunDir) -> None:
    farm = ranked(rundir)

    # Whenever a turn is over, those of all others are due again.
    for beat in range(2, 14):
        for policy in range(3):
            if farm.order_to(policy) is not None:
                farm.answer(policy)
        farm.all_reach(beat * PERIOD)
        farm.look()

    assert {event.policy for event in farm.turns() if event.env_steps > PERIOD} == {BEST, MIDDLE, WORST}


def test_nobody_takes_over_from_a_member_without_weights(rundir: RunDir) -> None:
    farm = Farm(rundir, Resumed(10_000, steps_of_policies=(0, 5000, 5000), policies_without_checkpoint=(BEST,)))
    farm.end_episodes(best=1000.0, middle=50.0)

    # The others have waited long enough for the last one's episodes, and the one without weights still waits.
    farm.row(MIDDLE).set("env_steps", 5000 + PERIOD)
    farm.look()

    assert [(event.policy, event.kind) for event in farm.turns()] == [(MIDDLE, Kind.KEEP)]
    assert farm.order_to(BEST) is None
