"""A channel keeps order, holds what it was made for, and says loudly when it cannot take a message."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from sfactory.errors import ChannelFull, MessageTooLarge
from sfactory.messages import (
    MAX_EPISODES_PER_REPORT,
    MAX_REPORT_BYTES,
    TO_ACTOR,
    TO_LEARNER,
    TO_MAIN,
    ActReply,
    EpisodesDone,
    SlotFreed,
    ToActor,
    ToLearner,
    ToMain,
    TrajectoryReady,
)
from sfactory.shared.channel import Channel
from tests.support.processes import shm_names


def report(episodes: int, actor: int = 0) -> EpisodesDone:
    return EpisodesDone(actor, np.arange(episodes, dtype=np.float64), np.ones(episodes, np.int64))


def send_slots(channel: Channel[ToLearner], actor: int, count: int) -> None:
    for slot in range(count):
        channel.put(TrajectoryReady(actor, slot))


def drained(channel: Channel[ToLearner], count: int) -> list[ToLearner]:
    """``count`` messages, or as many as have come when nothing more does for 30 seconds."""
    messages: list[ToLearner] = []
    while len(messages) < count and (more := list(channel.get(30))):
        messages += more
    return messages


def test_messages_come_out_in_the_order_they_went_in() -> None:
    channel: Channel[ToActor] = Channel("reader", TO_ACTOR, capacity=100)
    sent: list[ToActor] = [ActReply(i, 2 * i) if i % 3 else SlotFreed(i) for i in range(100)]

    for message in sent:
        channel.put(message)

    assert list(channel.get(0)) == sent


def test_nothing_to_read_is_an_empty_answer() -> None:
    channel: Channel[ToActor] = Channel("reader", TO_ACTOR, capacity=4)

    assert tuple(channel.get(0)) == ()
    assert tuple(channel.get(0.01)) == ()
    assert tuple(channel.get(-1)) == ()


@pytest.mark.parametrize("capacity", [1000, 5000])
def test_a_channel_holds_its_capacity_of_fixed_messages(capacity: int) -> None:
    channel: Channel[ToLearner] = Channel("reader", TO_LEARNER, capacity)

    send_slots(channel, 3, capacity)

    assert drained(channel, capacity) == [TrajectoryReady(3, slot) for slot in range(capacity)]


def test_a_channel_holds_its_capacity_of_the_largest_reports() -> None:
    channel: Channel[ToMain] = Channel("main", TO_MAIN, capacity=5, message_bytes=MAX_REPORT_BYTES)

    for actor in range(5):
        channel.put(report(MAX_EPISODES_PER_REPORT, actor))

    received: list[ToMain] = []
    while len(received) < 5 and (more := list(channel.get(30))):
        received += more
    assert [(m.actor, len(m.returns), m.returns[-1]) for m in received if isinstance(m, EpisodesDone)] == [
        (actor, 4096, 4095.0) for actor in range(5)
    ]


def test_a_full_channel_says_whose_it_is_and_loses_nothing() -> None:
    channel: Channel[ToLearner] = Channel("sf-learner-0", TO_LEARNER, capacity=10)
    sent = 0
    while channel.try_put(TrajectoryReady(0, sent)):
        sent += 1

    with pytest.raises(ChannelFull, match="the ring of sf-learner-0 is full"):
        channel.put(TrajectoryReady(0, sent))

    assert drained(channel, sent) == [TrajectoryReady(0, slot) for slot in range(sent)]


def test_a_full_channel_has_room_again_once_it_was_read() -> None:
    channel: Channel[ToLearner] = Channel("reader", TO_LEARNER, capacity=10)
    sent = 0
    while channel.try_put(TrajectoryReady(0, sent)):
        sent += 1
    drained(channel, sent)

    channel.put(TrajectoryReady(1, 1))

    assert list(channel.get(0)) == [TrajectoryReady(1, 1)]


def test_a_message_that_can_never_fit_is_refused_at_once() -> None:
    channel: Channel[ToMain] = Channel("main", TO_MAIN, capacity=1)

    with pytest.raises(MessageTooLarge, match="bytes for main; its ring holds 4096"):
        channel.put(report(1000))


def test_messages_of_several_processes_keep_the_order_of_each() -> None:
    context = multiprocessing.get_context("spawn")
    count, before = 300, shm_names()
    channel: Channel[ToLearner] = Channel("reader", TO_LEARNER, capacity=2 * count)
    children = [context.Process(target=send_slots, args=(channel, actor, count)) for actor in range(2)]
    for child in children:
        child.start()

    received = drained(channel, 2 * count)

    for child in children:
        child.join(60)
        assert child.exitcode == 0
    for actor in range(2):
        assert [m.slot for m in received if m.actor == actor] == list(range(count))
    assert shm_names() - before == frozenset()
