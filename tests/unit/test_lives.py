"""A reader that is replaced has a ring of its own: what was meant for the dead one never reaches it."""

from __future__ import annotations

import pytest

from sfactory.messages import TO_ACTOR, ActReply, SlotFreed, ToActor
from sfactory.shared.channel import RINGS, Channel, Lives


def channel_of(name: str, lives: Lives) -> Channel[ToActor]:
    return Channel(name, TO_ACTOR, 8, life=lives.of(name))


def test_what_was_sent_to_the_dead_is_not_read_by_who_takes_over() -> None:
    channel = channel_of("a", Lives(["a", "b"]))
    channel.put(SlotFreed(1))

    channel.begin_next_life()
    channel.put(SlotFreed(2))

    assert list(channel.get(1.0)) == [SlotFreed(2)]
    assert channel.life == 1


def test_an_answer_for_a_life_that_is_over_is_lost() -> None:
    channel = channel_of("a", Lives(["a"]))
    channel.begin_next_life()

    channel.put(ActReply(0, 3), life=0)
    channel.put(ActReply(0, 4), life=1)

    assert list(channel.get(1.0)) == [ActReply(0, 4)]


def test_each_reader_has_a_life_of_its_own() -> None:
    lives = Lives(["a", "b"])
    first, second = channel_of("a", lives), channel_of("b", lives)

    second.begin_next_life()

    assert (first.life, second.life) == (0, 1)


def test_rings_are_used_up_at_last() -> None:
    channel = channel_of("a", Lives(["a"]))
    for _ in range(RINGS - 1):
        assert channel.has_another
        channel.begin_next_life()

    assert not channel.has_another
    with pytest.raises(AssertionError, match="no ring is left for a"):
        channel.begin_next_life()


def test_a_reader_that_lives_but_once_has_one_ring() -> None:
    channel: Channel[ToActor] = Channel("a", TO_ACTOR, 8)

    assert (channel.life, channel.has_another) == (0, False)
