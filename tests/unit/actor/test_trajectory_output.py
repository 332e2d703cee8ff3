"""Complete slots reach the learner, and every finished episode reaches main, however slow main is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sfactory.actor.base_actor import TrajectoryOutput
from sfactory.actor.setup import ActorSetup
from sfactory.actor.split import Split
from sfactory.config.flags import config_of
from sfactory.messages import (
    MAX_EPISODES_PER_REPORT,
    MAX_REPORT_BYTES,
    TO_MAIN,
    EpisodeExtras,
    EpisodesDone,
    ToMain,
    TrajectoryReady,
)
from sfactory.shared.channel import Channel
from sfactory.shared.objects import SharedObjects
from sfactory.shared.slots import SlotState
from tests.support.episodes import finished_episodes
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_env import Episode, ScriptedEnv, no_faults

ROLLOUT = 4


class Sender:
    """A TrajectoryOutput of actor 1 with one split, and the channels that it writes to.

    capacity: full reports that the channel to main takes. slots: that the split owns. in_flight: the most that may be
    filled or wait for the learner.
    """

    def __init__(self, capacity: int = 64, slots: int = 2, in_flight: int = 0) -> None:
        shared = SharedObjects(SCALAR, small_layout(rows=2, rollout=ROLLOUT, slots_per_split=slots), weight_bytes=64)
        config = config_of({"env": "any", "max_sample_requests_in_flight_per_worker": in_flight})
        self.to_main: Channel[ToMain] = Channel("main", TO_MAIN, capacity, MAX_REPORT_BYTES)
        shared.actors_to_main = self.to_main
        self._setup = ActorSetup(config, shared, 1, 1, 0)
        self.table, self.to_learner = shared.table, shared.to_learners[0]
        self.start_actor([(3, "terminated")])
        self._ended = 0

    def start_actor(self, script: Sequence[Episode] = ()) -> None:
        """Start the actor. ``script``: of the first of two envs."""
        self.output = TrajectoryOutput(self._setup)
        self.split = Split.of_envs(0, [ScriptedEnv(script), ScriptedEnv([])], SCALAR, ROLLOUT, no_faults())
        self.split.reset([1, 2], "test")

    def replace_actor(self) -> None:
        """Start a replacement, which finds the table as it is."""
        self._setup.inbox.begin_next_incarnation()
        self.start_actor()

    def end_episodes(self, count: int) -> None:
        """End ``count`` episodes of one step; the n-th of them all has the return n."""
        tracker = self.split.episodes
        for _ in range(count):
            tracker.step(np.array([float(self._ended), 0.0]))
            tracker.end([0])
            self._ended += 1

    def fill_slots(self, most: int = 10**9) -> int:
        """Fill and send slots until none is free, or ``most`` are; returns how many."""
        filled = 0
        while filled < most and self.output.begin(self.split):
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

    def reports(self) -> list[list[float]]:
        """Returns of each report in main's channel (one look may not take them all)."""
        found: list[list[float]] = []
        while messages := self.to_main.get(0):
            for message in messages:
                assert isinstance(message, EpisodesDone)
                assert message.actor == 1
                assert message.returns.shape == message.lengths.shape
                found.append(message.returns.tolist())
        return found


def joined(reports: list[list[float]]) -> list[float]:
    return [number for report in reports for number in report]


def test_all_finished_episodes_are_sent_at_once_in_full_reports() -> None:
    sender = Sender()
    sender.output.report(sender.split)
    assert sender.reports() == []

    sender.end_episodes(10_000)
    sender.output.report(sender.split)

    reports = sender.reports()
    assert [len(report) for report in reports] == [MAX_EPISODES_PER_REPORT, MAX_EPISODES_PER_REPORT, 1808]
    assert joined(reports) == list(range(10_000))
    assert finished_episodes(sender.split.episodes) == []


def test_episodes_that_do_not_fit_are_sent_with_the_next_reports_in_order() -> None:
    sender = Sender(capacity=1)
    sender.end_episodes(10_000)

    sender.output.report(sender.split)
    sender.end_episodes(5)
    sender.output.report(sender.split)

    received: list[float] = []
    for _ in range(3):
        received += joined(sender.reports())
        sender.output.report(sender.split)
    assert received == list(range(10_005))
    assert sender.reports() == []


def test_a_complete_slot_is_sent_to_the_learner_and_its_episodes_to_main() -> None:
    sender = Sender()
    first_slot = sender.table.slots_of(1)[0]

    sender.fill_slots(1)

    assert list(sender.to_learner.get(0)) == [TrajectoryReady(1, first_slot)]
    assert sender.table.state(first_slot) is SlotState.READY
    assert sender.reports() == [[0.5 + 1.5 + 2.5]]


@pytest.mark.parametrize(("in_flight", "most"), [(0, 4), (1, 1), (3, 3), (4, 4), (9, 4)])
def test_slots_are_filled_in_turn_up_to_the_limit_in_flight(in_flight: int, most: int) -> None:
    sender = Sender(slots=4, in_flight=in_flight)

    first = sender.fill_slots()
    sender.learn(1)
    after_one = sender.fill_slots()
    sender.learn(most)
    after_all = sender.fill_slots()

    assert (first, after_one, after_all) == (most, 1, most)
    begun = [sender.table.generation(slot) for slot in sender.table.slots_of(1)]
    assert sum(begun) == 2 * most + 1
    assert max(begun) - min(begun) <= 1


def test_a_slot_that_is_being_filled_is_in_flight_and_those_of_other_actors_are_not() -> None:
    sender = Sender(slots=4, in_flight=1)
    for other in sender.table.slots_of(0):
        sender.table.begin(other)

    assert sender.output.begin(sender.split)
    sender.split.step()

    assert not sender.output.begin(sender.split)


def test_extra_statistics_are_sent_before_the_episodes_even_if_they_must_wait() -> None:
    sender = Sender(capacity=1)
    sender.end_episodes(4096)
    sender.output.report(sender.split)  # fills the channel
    for _ in range(4096):
        sender.split.batch.extras.add({"true_objective": 1.0})
    sender.end_episodes(1)

    sender.output.report(sender.split)

    assert len(sender.reports()) == 1
    sender.output.report(sender.split)
    extras, episodes = sender.to_main.get(0)
    assert isinstance(extras, EpisodeExtras)
    assert (extras.actor, extras.name, len(extras.values)) == (1, "true_objective", 4096)
    assert isinstance(episodes, EpisodesDone)
    assert episodes.returns.tolist() == [4096.0]


def test_a_replacement_announces_ready_slots_in_order_and_begins_with_the_least_used() -> None:
    sender = Sender(slots=3)
    sender.fill_slots()
    first, second, third = sender.table.slots_of(1)
    sender.table.release(first, 0)
    sender.fill_slots(1)  # the first once more, which is now the last
    sender.table.release(second, 0)
    sender.to_learner.get(0)

    sender.replace_actor()

    assert list(sender.to_learner.get(0)) == [TrajectoryReady(1, third), TrajectoryReady(1, first)]
    assert sender.output.begin(sender.split)
    assert sender.split.slot.index == second


def test_a_replacement_begins_with_the_slot_that_was_reclaimed_from_its_predecessor() -> None:
    sender = Sender(slots=2)
    first, second = sender.table.slots_of(1)
    sender.fill_slots(1)
    assert sender.output.begin(sender.split)
    sender.table.reclaim(1)

    sender.replace_actor()

    # Where collection waits, the first is freed only once the second is full.
    assert sender.table.state(first) is SlotState.READY
    assert sender.output.begin(sender.split)
    assert sender.split.slot.index == second
