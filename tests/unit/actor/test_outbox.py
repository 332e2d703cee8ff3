"""What an actor sends: every finished episode and what it told reaches main, however slow main is."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sfactory.actor.split import Split
from sfactory.actor.trajectory_output import TrajectoryOutput
from sfactory.config.schema import Config, ReportConfig
from sfactory.messages import (
    MAX_EPISODES_PER_REPORT,
    MAX_REPORT_BYTES,
    TO_LEARNER,
    TO_MAIN,
    EpisodeExtras,
    EpisodesDone,
    ToLearner,
    ToMain,
    TrajectoryReady,
)
from sfactory.report.collector import ReportCollector
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotState, SlotTable
from sfactory.shared.status import StatusBoard
from sfactory.shared.trajectories import TrajectoryBuffer
from tests.support.episodes import finished_episodes
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import ScriptedEnv

ROLLOUT = 4


class Desk:
    """An Outbox of actor 1 with one split, and what it writes to. ``room``: full reports that main's ring takes.

    slots: that the split owns. in_flight: the most of them that are filled or wait for the learner.
    """

    def __init__(
        self,
        room: int = 64,
        envs: list[gymnasium.Env[Any, Any]] | None = None,
        slots: int = 2,
        in_flight: int = 0,
    ) -> None:
        layout = small_layout(rows=2, rollout=ROLLOUT, slots_per_split=slots)
        self.table = SlotTable(layout.num_actors, layout.splits, layout.slots_per_split, layout.num_policies)
        self.to_learner: Channel[ToLearner] = Channel("learner", TO_LEARNER, 16)
        self.to_main: Channel[ToMain] = Channel("main", TO_MAIN, room, MAX_REPORT_BYTES)
        self.output = TrajectoryOutput(
            1, TrajectoryBuffer(SCALAR, layout), self.table, [self.to_learner], self.to_main, in_flight
        )
        # What the envs themselves end, if not given: an episode of 3 steps in the first, none in the second.
        own = [ScriptedEnv([(3, "terminated")]), ScriptedEnv([])]
        self.split = Split.of_envs(0, envs or own, SCALAR, ROLLOUT)
        self.split.reset([1, 2], "test")
        self._ended = 0

    def end_episodes(self, count: int) -> None:
        """End ``count`` episodes of one step; the n-th of them all has the return n."""
        tracker = self.split.episodes
        for _ in range(count):
            tracker.step(np.array([float(self._ended), 0.0]))
            tracker.end([0])
            self._ended += 1

    def fill_slot(self) -> None:
        """Collect a whole slot and send it."""
        assert self.output.begin(self.split)
        for _ in range(ROLLOUT):
            self.split.step()
        self.output.finish(self.split)

    def fill_slots(self) -> int:
        """Fill and send slots until none is given; returns how many."""
        filled = 0
        while self.output.begin(self.split):
            for _ in range(ROLLOUT):
                self.split.step()
            self.output.finish(self.split)
            filled += 1
        return filled

    def learn(self, count: int) -> None:
        """Free the ``count`` slots that have waited longest, as the learner does."""
        waiting = [message.slot for message in self.to_learner.get(0) if isinstance(message, TrajectoryReady)]
        for slot in waiting[:count]:
            self.table.release(slot, 0)
        for slot in waiting[count:]:
            self.to_learner.put(TrajectoryReady(1, slot))

    def told(self) -> list[list[float]]:
        """Returns of each report that has reached main."""
        reports = [message for message in self.to_main.get(0) if isinstance(message, EpisodesDone)]
        assert all(report.actor == 1 and report.returns.shape == report.lengths.shape for report in reports)
        return [report.returns.tolist() for report in reports]

    def told_until_empty(self) -> list[list[float]]:
        """All reports in the ring (one look may not take them all)."""
        reports: list[list[float]] = []
        while more := self.told():
            reports += more
        return reports


def joined(reports: list[list[float]]) -> list[float]:
    return [number for report in reports for number in report]


def numbers(start: int, stop: int) -> list[float]:
    return [float(number) for number in range(start, stop)]


def test_ten_thousand_finished_episodes_go_out_with_one_report() -> None:
    desk = Desk()
    desk.end_episodes(10_000)

    desk.output.report(desk.split)

    reports = desk.told_until_empty()
    assert [len(report) for report in reports] == [MAX_EPISODES_PER_REPORT, MAX_EPISODES_PER_REPORT, 1808]
    assert joined(reports) == numbers(0, 10_000)
    assert finished_episodes(desk.split.episodes) == []


def test_without_a_finished_episode_nothing_is_sent() -> None:
    desk = Desk()

    desk.output.report(desk.split)

    assert desk.told() == []


def test_episodes_that_find_main_behind_stay_and_go_with_the_next_report() -> None:
    desk = Desk(room=1)
    desk.end_episodes(10_000)

    desk.output.report(desk.split)
    desk.end_episodes(5)
    desk.output.report(desk.split)

    # The ring takes one full report; the rest waits with the actor, the new episodes behind it.
    received: list[float] = []
    for _ in range(3):
        received += joined(desk.told_until_empty())
        desk.output.report(desk.split)
    assert received == numbers(0, 10_005)
    assert desk.told() == []


def test_a_complete_slot_goes_to_the_learner_and_its_episodes_to_main() -> None:
    desk = Desk()
    first_slot = desk.table.slots_of(1)[0]

    desk.fill_slot()

    assert list(desk.to_learner.get(0)) == [TrajectoryReady(1, first_slot)]
    assert desk.table.state(first_slot) is SlotState.READY
    assert desk.told() == [[0.5 + 1.5 + 2.5]]


@pytest.mark.parametrize("slots", [2, 5])
def test_slots_are_handed_out_until_none_is_free(slots: int) -> None:
    desk = Desk(slots=slots)

    assert desk.fill_slots() == slots
    assert desk.fill_slots() == 0
    desk.learn(1)
    assert desk.fill_slots() == 1


@pytest.mark.parametrize(("in_flight", "most"), [(0, 4), (1, 1), (3, 3), (4, 4), (9, 4)])
def test_no_more_slots_are_under_way_than_may_be(in_flight: int, most: int) -> None:
    desk = Desk(slots=4, in_flight=in_flight)

    first = desk.fill_slots()
    desk.learn(1)
    after_one = desk.fill_slots()
    desk.learn(most)
    after_all = desk.fill_slots()

    assert (first, after_one, after_all) == (most, 1, most)
    # Every slot is used all the same: they come in turn.
    begun = [desk.table.generation(slot) for slot in desk.table.slots_of(1)]
    assert sum(begun) == 2 * most + 1
    assert max(begun) - min(begun) <= 1


def test_a_slot_that_is_being_filled_is_under_way_and_those_of_other_actors_are_not() -> None:
    desk = Desk(slots=4, in_flight=1)
    for other in desk.table.slots_of(0):
        desk.table.begin(other)

    assert desk.output.begin(desk.split)
    desk.split.step()

    assert not desk.output.begin(desk.split)


def test_what_episodes_told_goes_before_the_episodes_themselves() -> None:
    desk = Desk()
    desk.end_episodes(2)
    desk.split.batch.extras.add({"episode_extra_stats": {"kills": 5.0}})

    desk.output.report(desk.split)

    extras, episodes = desk.to_main.get(0)
    assert isinstance(extras, EpisodeExtras)
    assert (extras.actor, extras.name, extras.values.tolist()) == (1, "kills", [5.0])
    assert isinstance(episodes, EpisodesDone)
    assert episodes.returns.tolist() == [0.0, 1.0]


def test_episodes_wait_for_what_they_told_until_main_has_room_for_it() -> None:
    desk = Desk(room=1)
    desk.end_episodes(4096)
    desk.output.report(desk.split)  # fills the ring
    for _ in range(4096):
        desk.split.batch.extras.add({"true_objective": 1.0})
    desk.end_episodes(1)

    desk.output.report(desk.split)

    assert len(desk.told_until_empty()) == 1
    desk.output.report(desk.split)
    extras, episodes = desk.to_main.get(0)
    assert isinstance(extras, EpisodeExtras)
    assert len(extras.values) == 4096
    assert isinstance(episodes, EpisodesDone)
    assert episodes.returns.tolist() == [4096.0]


class Hunter(gymnasium.Env[Any, Any]):
    """Episodes of 1, 2, 3, ... steps with a reward of 1 each; at their ends it tells what it has shot."""

    def __init__(self, kills_per_step: float, with_objective: bool) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(10)
        self._kills_per_step, self._with_objective = kills_per_step, with_objective
        self._length = self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._length, self._steps = self._length + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        # Told with every step, as some envs do; only what the last step tells is of the episode.
        info: dict[str, Any] = {"episode_extra_stats": {"kills": self._kills_per_step * self._steps, "steps": "many"}}
        if self._with_objective:
            info["true_objective"] = 100 * self._steps
        return np.zeros(1, np.float32), 1.0, self._steps == self._length, False, info


@pytest.mark.parametrize("with_objective", [True, False])
def test_what_envs_tell_at_the_ends_of_episodes_arrives_in_the_rows_and_in_the_summary(
    with_objective: bool, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(envs=[Hunter(1.0, with_objective), Hunter(10.0, with_objective)])
    status = StatusBoard(["sf-learner-0", "sf-actor-0", "sf-actor-1"])
    reports = ReportCollector(Config(report=ReportConfig(stats_avg=4)), desk.to_main, [], status)

    # Two slots of 4 steps: episodes of 1, 2 and 3 steps in each env, the last two steps are of a fourth.
    for _ in range(2):
        desk.fill_slot()
        reports.poll()

    # In the order in which they ended: lengths 1 1 2 2 3 3, kills 1 10 2 20 3 30; the window is the last four.
    row, summary = reports.scalars(), reports.summary("done")
    expected = {
        "train/episodes": 6,
        "train/episode_return_mean": 2.5,
        "train/episode_length_mean": 2.5,
        "train/episode_length_min": 2.0,
        "train/episode_length_max": 3.0,
        "train/extra/kills_mean": 13.75,
        "train/extra/kills_min": 2.0,
        "train/extra/kills_max": 30.0,
        "train/true_objective_mean": 250.0 if with_objective else 2.5,
        "train/true_objective_min": 200.0 if with_objective else 2.0,
        "train/true_objective_max": 300.0 if with_objective else 3.0,
    }
    assert {key: row[key] for key in expected} == expected
    assert [key for key in row if key.startswith("train/extra/steps")] == []
    assert summary.true_objective_mean == expected["train/true_objective_mean"]
    assert summary.episode_extra_stats == {"kills": 13.75}
    (warning,) = caplog.messages
    assert warning.startswith("sf-actor-1: ")
    assert "'steps' is not a number, but of type str" in warning


def test_an_actor_that_takes_over_announces_what_is_ready_in_the_order_it_was_filled() -> None:
    desk = Desk(slots=3)
    desk.fill_slots()
    first, second, third = desk.table.slots_of(1)
    desk.table.release(first, 0)
    desk.fill_slot()  # the first once more, which is now the last
    desk.table.release(second, 0)
    desk.to_learner.get(0)

    desk.output.announce_again()

    assert list(desk.to_learner.get(0)) == [TrajectoryReady(1, third), TrajectoryReady(1, first)]


def test_an_actor_that_takes_over_begins_with_the_slot_that_was_used_least() -> None:
    desk = Desk(slots=3)
    desk.fill_slots()
    first, second, third = desk.table.slots_of(1)
    desk.table.release(first, 0)
    desk.fill_slot()
    desk.table.release(second, 0)
    trajectories = TrajectoryBuffer(SCALAR, small_layout(rows=2, rollout=ROLLOUT, slots_per_split=3))

    output = TrajectoryOutput(1, trajectories, desk.table, [desk.to_learner], desk.to_main)
    split = Split.of_envs(0, [ScriptedEnv([]), ScriptedEnv([])], SCALAR, ROLLOUT)
    split.reset([1, 2], "test")

    assert output.begin(split)
    assert split.slot.index == second
    assert desk.table.state(third) is SlotState.READY


def test_an_actor_that_takes_over_begins_with_what_was_taken_back_from_the_dead_one() -> None:
    desk = Desk(slots=2)
    first, second = desk.table.slots_of(1)
    desk.fill_slot()
    assert desk.output.begin(desk.split)
    desk.table.reclaim(1)
    trajectories = TrajectoryBuffer(SCALAR, small_layout(rows=2, rollout=ROLLOUT, slots_per_split=2))

    output = TrajectoryOutput(1, trajectories, desk.table, [desk.to_learner], desk.to_main)
    split = Split.of_envs(0, [ScriptedEnv([]), ScriptedEnv([])], SCALAR, ROLLOUT)
    split.reset([1, 2], "test")

    # Where collection waits, the first is freed only once the second is full.
    assert desk.table.state(first) is SlotState.READY
    assert output.begin(split)
    assert split.slot.index == second
