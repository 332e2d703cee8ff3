"""A channel keeps order and capacity, reports when it is full, and gives a replaced reader its own ring."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from scripts.process_facts import shm_names
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
from sfactory.shared.channel import RINGS, Channel, Incarnations, M
from tests.support.processes import eventually, named_memory_since


def report(episodes: int, actor: int = 0) -> EpisodesDone:
    return EpisodesDone(actor, np.arange(episodes, dtype=np.float64), np.ones(episodes, np.int64))


def slots(actor: int, count: int) -> list[ToLearner]:
    return [TrajectoryReady(actor, slot) for slot in range(count)]


def send_all(channel: Channel[M], messages: Sequence[M]) -> None:
    for message in messages:
        channel.put(message)


def drained(channel: Channel[M], count: int) -> list[M]:
    """``count`` messages, or as many as arrive before 30 seconds without any."""
    messages: list[M] = []
    while len(messages) < count and (more := list(channel.get(30))):
        messages += more
    return messages


def channel_of(name: str, incarnations: Incarnations) -> Channel[ToActor]:
    return Channel(name, TO_ACTOR, 8, incarnations=incarnations)


@pytest.fixture(params=["faster-fifo", "here"])
def ring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rings of Linux, and those of other systems, which stay in one process."""
    monkeypatch.setattr("sfactory.shared.channel.LINUX", request.param == "faster-fifo")


@pytest.mark.usefixtures("ring")
def test_channel_holds_its_capacity() -> None:
    channel: Channel[ToLearner] = Channel("reader", TO_LEARNER, 5000)
    send_all(channel, slots(3, 5000))
    assert drained(channel, 5000) == slots(3, 5000)

    reports: Channel[ToMain] = Channel("main", TO_MAIN, capacity=5, message_bytes=MAX_REPORT_BYTES)
    send_all(reports, [report(MAX_EPISODES_PER_REPORT, actor) for actor in range(5)])
    received = [(m.actor, m.returns[-1]) for m in drained(reports, 5) if isinstance(m, EpisodesDone)]
    assert received == [(actor, MAX_EPISODES_PER_REPORT - 1) for actor in range(5)]


@pytest.mark.usefixtures("ring")
def test_full_channel_names_its_reader_and_loses_nothing() -> None:
    channel: Channel[ToLearner] = Channel("sf-learner-0", TO_LEARNER, capacity=10)
    sent = 0
    while channel.try_put(TrajectoryReady(0, sent)):
        sent += 1

    with pytest.raises(ChannelFull, match="the ring of sf-learner-0 is full"):
        channel.put(TrajectoryReady(0, sent))

    assert drained(channel, sent) == slots(0, sent)
    assert [tuple(channel.get(timeout)) for timeout in (0, 0.01, -1)] == [(), (), ()]
    channel.put(TrajectoryReady(1, 1))
    assert list(channel.get(0)) == [TrajectoryReady(1, 1)]


def test_message_that_can_never_fit_is_refused() -> None:
    channel: Channel[ToMain] = Channel("main", TO_MAIN, capacity=1)

    with pytest.raises(MessageTooLarge, match="bytes for main; its ring holds 4096"):
        channel.put(report(1000))


def test_messages_of_several_processes_keep_the_order_of_each() -> None:
    context = multiprocessing.get_context("spawn")
    count, before = 300, shm_names()
    channel: Channel[ToLearner] = Channel("reader", TO_LEARNER, capacity=2 * count)
    children = [context.Process(target=send_all, args=(channel, slots(actor, count))) for actor in range(2)]
    for child in children:
        child.start()

    received = drained(channel, 2 * count)

    for child in children:
        child.join(60)
        assert child.exitcode == 0
    for actor in range(2):
        assert [message for message in received if message.actor == actor] == slots(actor, count)
    assert not named_memory_since(before)


def test_replacement_does_not_read_messages_to_the_dead_reader() -> None:
    incarnations = Incarnations(["a", "b"])
    channel, other = channel_of("a", incarnations), channel_of("b", incarnations)
    channel.put(SlotFreed(1))

    channel.begin_next_incarnation()
    channel.put(SlotFreed(2))
    channel.put(ActReply(0, 3), incarnation=0)
    channel.put(ActReply(0, 4), incarnation=1)

    assert list(channel.get(1.0)) == [SlotFreed(2), ActReply(0, 4)]
    assert (channel.incarnation, other.incarnation) == (1, 0)


def test_rings_for_replacements_are_limited() -> None:
    channel = channel_of("a", Incarnations(["a"]))
    for _ in range(RINGS - 1):
        assert channel.has_another
        channel.begin_next_incarnation()

    assert not channel.has_another
    with pytest.raises(AssertionError, match="no ring is left for a"):
        channel.begin_next_incarnation()
    assert not Channel("a", TO_ACTOR, 8).has_another


def read_forever(channel: Channel[ToLearner]) -> None:
    while True:
        channel.get(1000)


def test_writer_continues_after_its_reader_was_killed() -> None:
    context = multiprocessing.get_context("spawn")
    channel: Channel[ToLearner] = Channel("reader", TO_LEARNER, capacity=2000)
    reader = context.Process(target=read_forever, args=(channel,), daemon=True)
    reader.start()
    channel.put(TrajectoryReady(0, 0))
    stat = Path(f"/proc/{reader.pid}/stat")

    def waits() -> bool:  # for the next message; a moment before it may have the lock of the ring
        return not channel.waiting and stat.read_text().rpartition(")")[2].split()[0] == "S"

    assert eventually(waits, 60.0)
    reader.kill()
    reader.join(60)
    assert reader.exitcode == -signal.SIGKILL

    writer = context.Process(target=send_all, args=(channel, slots(0, 2000)), daemon=True)
    writer.start()
    writer.join(60)

    assert writer.exitcode == 0
