"""Slots go FREE -> FILLING -> READY -> FREE; refused moves are described and steps of dead actors are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sfactory.shared.slots import IllegalTransition, SlotState, SlotTable

FREE, FILLING, READY = SlotState.FREE, SlotState.FILLING, SlotState.READY


def table_of(policies: int = 1) -> SlotTable:
    return SlotTable(num_actors=2, splits=1, slots_per_split=3, num_policies=policies)


def begin(table: SlotTable) -> None:
    table.begin(0)


def publish(table: SlotTable) -> None:
    table.publish(0, 0)


def release(table: SlotTable) -> None:
    table.release(0, 0)


MOVES = (begin, publish, release)


def test_slot_goes_from_free_to_free() -> None:
    table = table_of()
    seen = []
    for move in 2 * MOVES:
        move(table)
        seen.append(table.state(0))

    assert seen == 2 * [FILLING, READY, FREE]
    assert [table.generation(slot) for slot in range(6)] == [2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("before", "move", "problem"),
    [
        (1, begin, "slot 0 of actor 0 is FILLING, not FREE"),
        (2, begin, "slot 0 of actor 0 is READY, not FREE"),
        (0, publish, "is FREE, not FILLING"),
        (2, publish, "is READY, not FILLING"),
        (0, release, "slot 0 is released by policy 0"),
        (1, release, "slot 0 is released by policy 0"),
        (2, lambda table: table.release(0, 1), "policy 1"),
    ],
)
def test_illegal_move_is_refused(before: int, move: Callable[[SlotTable], None], problem: str) -> None:
    table = table_of(policies=2)
    for legal in MOVES[:before]:
        legal(table)

    with pytest.raises(IllegalTransition, match=problem):
        move(table)


def test_slots_of_a_dead_actor_are_free_again_and_their_steps_are_lost() -> None:
    table = table_of()
    for slot in (0, 1, 3):
        table.begin(slot)
        table.count_steps(slot, 5)
        table.count_steps(slot, 2)
    table.publish(1, 0)

    assert table.reclaim(0) == 7

    assert [table.state(slot) for slot in range(6)] == [FREE, READY, FREE, FILLING, FREE, FREE]
    assert table.steps_held() == 14
    assert (table.steps_of(0), table.steps_of(1)) == (14, 7)


def test_slot_of_an_actor_that_died_inside_publish_is_complete() -> None:
    table = table_of()
    table.begin(0)
    table.count_steps(0, 9)
    table._shared["pending"][0, 0] = 1  # the first of the two bytes that ``publish`` writes

    assert table.reclaim(0) == 0

    assert table.state(0) is READY
    assert table.steps_held() == 9


def test_every_slot_has_one_owner() -> None:
    table = SlotTable(num_actors=2, splits=2, slots_per_split=3, num_policies=1)

    splits = [list(table.slots_of_split(actor, split)) for actor in range(2) for split in range(2)]

    assert splits == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert [list(table.slots_of(actor)) for actor in range(2)] == [splits[0] + splits[1], splits[2] + splits[3]]
    assert [table.owner(slot) for slot in range(12)] == 6 * [0] + 6 * [1]
