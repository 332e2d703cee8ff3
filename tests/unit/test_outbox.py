"""What an actor sends: every finished episode reaches main, in order, however many there are, however slow main is."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from sfactory.actor.env_group import EnvGroup
from sfactory.actor.outbox import Outbox
from sfactory.actor.split import Split
from sfactory.messages import (
    MAX_EPISODES_PER_REPORT,
    MAX_REPORT_BYTES,
    TO_LEARNER,
    TO_MAIN,
    EpisodesDone,
    ToLearner,
    ToMain,
    TrajectoryReady,
)
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotState, SlotTable
from sfactory.shared.trajectories import TrajectoryBuffer
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import ScriptedEnv

ROLLOUT = 4


class Desk:
    """An Outbox of actor 1 with one split, and what it writes to. ``room``: full reports that main's ring takes."""

    def __init__(self, room: int = 64) -> None:
        layout = small_layout(rows=2, rollout=ROLLOUT)
        self.table = SlotTable(layout.num_actors, layout.slots_per_actor, layout.num_policies)
        self.to_learner: Channel[ToLearner] = Channel("learner", TO_LEARNER, 16)
        self.to_main: Channel[ToMain] = Channel("main", TO_MAIN, room, MAX_REPORT_BYTES)
        self.outbox = Outbox(1, TrajectoryBuffer(SCALAR, layout), self.table, self.to_learner, self.to_main)
        # What the envs themselves end: an episode of 3 steps in the first, none in the second.
        group = EnvGroup([ScriptedEnv([(3, "terminated")]), ScriptedEnv([])])
        observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.split = Split(0, group, SCALAR, observation_space, spaces.Discrete(10), ROLLOUT)
        self.split.reset([1, 2], "test")
        self._ended = 0

    def end_episodes(self, count: int) -> None:
        """End ``count`` episodes of one step; the n-th of them all has the return n."""
        tally = self.split.tally
        for _ in range(count):
            tally.step(np.array([float(self._ended), 0.0]))
            tally.end(0)
            self._ended += 1

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

    desk.outbox.report(desk.split)

    reports = desk.told_until_empty()
    assert [len(report) for report in reports] == [MAX_EPISODES_PER_REPORT, MAX_EPISODES_PER_REPORT, 1808]
    assert joined(reports) == numbers(0, 10_000)
    assert desk.split.tally.finished_returns == []


def test_without_a_finished_episode_nothing_is_sent() -> None:
    desk = Desk()

    desk.outbox.report(desk.split)

    assert desk.told() == []


def test_episodes_that_find_main_behind_stay_and_go_with_the_next_report() -> None:
    desk = Desk(room=1)
    desk.end_episodes(10_000)

    desk.outbox.report(desk.split)
    desk.end_episodes(5)
    desk.outbox.report(desk.split)

    # The ring takes one full report; the rest waits with the actor, the new episodes behind it.
    assert len(desk.split.tally.finished_returns) == len(desk.split.tally.finished_lengths) == 10_005 - 4096
    received: list[float] = []
    for _ in range(3):
        received += joined(desk.told_until_empty())
        desk.outbox.report(desk.split)
    assert received == numbers(0, 10_005)
    assert desk.told() == []


def test_a_complete_slot_goes_to_the_learner_and_its_episodes_to_main() -> None:
    desk = Desk()
    assert desk.outbox.begin(desk.split)
    slot = desk.split.recorder.slot
    for _ in range(ROLLOUT):
        desk.split.step()

    desk.outbox.finish(desk.split)

    assert list(desk.to_learner.get(0)) == [TrajectoryReady(1, slot.index)]
    assert desk.table.state(slot.index) is SlotState.READY
    assert desk.told() == [[0.5 + 1.5 + 2.5]]


def test_slots_are_handed_out_until_none_is_free() -> None:
    desk = Desk()

    given = []
    for _ in range(3):
        given.append(desk.outbox.begin(desk.split))
        if given[-1]:
            for _ in range(ROLLOUT):
                desk.split.step()
            desk.outbox.finish(desk.split)

    # An actor of this layout has two slots.
    assert given == [True, True, False]
