"""A reader that is replaced has a ring of its own: what was meant for the dead one never reaches it."""

from __future__ import annotations

import pytest

from sfactory.messages import TO_ACTOR, ActReply, SlotFreed, ToActor
from sfactory.shared.channel import RINGS, Channel, Incarnations


def channel_of(name: str, incarnations: Incarnations) -> Channel[ToActor]:
    return Channel(name, TO_ACTOR, 8, incarnation=incarnations.of(name))


def test_what_was_sent_to_the_dead_is_not_read_by_who_takes_over() -> None:
    channel = channel_of("a", Incarnations(["a", "b"]))
    channel.put(SlotFreed(1))

    channel.begin_next_incarnation()
    channel.put(SlotFreed(2))

    assert list(channel.get(1.0)) == [SlotFreed(2)]
    assert channel.incarnation == 1


def test_an_answer_for_a_life_that_is_over_is_lost() -> None:
    channel = channel_of("a", Incarnations(["a"]))
    channel.begin_next_incarnation()

    channel.put(ActReply(0, 3), incarnation=0)
    channel.put(ActReply(0, 4), incarnation=1)

    assert list(channel.get(1.0)) == [ActReply(0, 4)]


def test_each_reader_has_a_life_of_its_own() -> None:
    incarnations = Incarnations(["a", "b"])
    first, second = channel_of("a", incarnations), channel_of("b", incarnations)

    second.begin_next_incarnation()

    assert (first.incarnation, second.incarnation) == (0, 1)


def test_rings_are_used_up_at_last() -> None:
    channel = channel_of("a", Incarnations(["a"]))
    for _ in range(RINGS - 1):
        assert channel.has_another
        channel.begin_next_incarnation()

    assert not channel.has_another
    with pytest.raises(AssertionError, match="no ring is left for a"):
        channel.begin_next_incarnation()


def test_a_reader_that_lives_but_once_has_one_ring() -> None:
    channel: Channel[ToActor] = Channel("a", TO_ACTOR, 8)

    assert (channel.incarnation, channel.has_another) == (0, False)
