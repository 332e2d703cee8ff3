"""Slots go FREE -> FILLING -> READY -> FREE and no other way."""

from __future__ import annotations

import pytest

from sfactory.shared.slots import IllegalTransition, SlotState, SlotTable

FREE, FILLING, READY = SlotState.FREE, SlotState.FILLING, SlotState.READY


def table_with(state: SlotState, policies: int = 1) -> SlotTable:
    """Slot 0 is in ``state``, for policy 0 if it is READY."""
    table = SlotTable(num_actors=2, splits=1, slots_per_split=3, num_policies=policies)
    if state is not FREE:
        table.begin(0)
    if state is READY:
        table.publish(0, 0)
    return table


def test_a_slot_lives_from_free_to_free() -> None:
    table = SlotTable(num_actors=2, splits=1, slots_per_split=3, num_policies=1)
    seen = [table.state(4)]

    for move in (lambda: table.begin(4), lambda: table.publish(4, 0), lambda: table.release(4, 0)):
        move()
        seen.append(table.state(4))

    assert seen == [FREE, FILLING, READY, FREE]
    assert [table.state(slot) for slot in range(6)] == [FREE] * 6


def test_every_filling_is_a_new_generation() -> None:
    table = SlotTable(num_actors=1, splits=1, slots_per_split=2, num_policies=1)

    for _ in range(3):
        table.begin(1)
        table.publish(1, 0)
        table.release(1, 0)

    assert (table.generation(0), table.generation(1)) == (0, 3)


@pytest.mark.parametrize("state", [FILLING, READY])
def test_only_a_free_slot_is_begun(state: SlotState) -> None:
    table = table_with(state)

    with pytest.raises(IllegalTransition, match=f"slot 0 of actor 0 is {state.name}, not FREE"):
        table.begin(0)

    assert (table.state(0), table.generation(0)) == (state, 1)


@pytest.mark.parametrize("state", [FREE, READY])
def test_only_a_filling_slot_is_published(state: SlotState) -> None:
    table = table_with(state)

    with pytest.raises(IllegalTransition, match=f"is {state.name}, not FILLING"):
        table.publish(0, 0)

    assert table.state(0) is state


@pytest.mark.parametrize("state", [FREE, FILLING])
def test_only_a_ready_slot_is_released(state: SlotState) -> None:
    table = table_with(state)

    with pytest.raises(IllegalTransition, match="slot 0 is released by policy 0"):
        table.release(0, 0)

    assert table.state(0) is state


def test_a_slot_is_released_by_the_policy_it_is_pending_for_alone() -> None:
    table = table_with(READY, policies=2)

    with pytest.raises(IllegalTransition, match="policy 1"):
        table.release(0, 1)

    assert table.state(0) is READY


def test_each_actor_owns_its_own_stretch_of_slots() -> None:
    table = SlotTable(num_actors=3, splits=1, slots_per_split=2, num_policies=1)

    assert [list(table.slots_of(actor)) for actor in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert [table.owner(slot) for slot in range(6)] == [0, 0, 1, 1, 2, 2]


def test_of_a_dead_actor_what_it_was_filling_is_free_again_and_its_steps_are_lost() -> None:
    table = SlotTable(num_actors=2, splits=1, slots_per_split=3, num_policies=1)
    for slot in (0, 1, 3):
        table.begin(slot)
        table.count_steps(slot, 5)
        table.count_steps(slot, 2)
    table.publish(1, 0)

    lost = table.reclaim(0)

    assert lost == 7
    assert [table.state(slot) for slot in range(6)] == [FREE, READY, FREE, FILLING, FREE, FREE]
    assert table.steps_held() == 14


def test_of_an_actor_that_died_within_publishing_the_slot_is_complete() -> None:
    table = table_with(FILLING)
    table.count_steps(0, 9)
    table._shared["pending"][0, 0] = 1  # the first of the two bytes that publishing writes

    assert table.reclaim(0) == 0

    assert table.state(0) is READY
    assert table.steps_held() == 9


def test_steps_are_counted_anew_with_each_filling() -> None:
    table = table_with(FILLING)
    table.count_steps(0, 9)
    table.publish(0, 0)
    table.release(0, 0)
    assert (table.steps(0), table.steps_held()) == (9, 0)

    table.begin(0)

    assert (table.steps(0), table.steps_held()) == (0, 0)


def test_what_an_actor_has_ever_counted_stays_whatever_becomes_of_its_slots() -> None:
    table = SlotTable(num_actors=2, splits=1, slots_per_split=3, num_policies=1)
    for steps in (3, 4):
        table.begin(0)
        table.count_steps(0, steps)
        table.publish(0, 0)
        table.release(0, 0)
    table.begin(1)
    table.count_steps(1, 5)

    assert table.reclaim(0) == 5

    assert (table.steps_of(0), table.steps_of(1)) == (12, 0)
