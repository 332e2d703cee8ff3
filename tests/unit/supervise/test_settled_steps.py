"""Steps of an actor that has died are those in its slots; what it told of may be less, by one step of one split."""

from __future__ import annotations

import pytest

from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR, small_layout

ROWS = small_layout().rows
COUNTED = 7


def shared_objects_of(told: int, agents: int = 1) -> SharedObjects:
    """Actor 1 has counted COUNTED steps in two of its slots, and told of so many."""
    shared = SharedObjects(VECTOR, small_layout(agents=agents), weight_bytes=8)
    for slot, steps in zip(shared.table.slots_of(1), (COUNTED - 2, 2), strict=True):
        shared.table.begin(slot)
        shared.table.count_steps(slot, steps)
    shared.status.row("sf-actor-1").set("env_steps", told)
    return shared


@pytest.mark.parametrize("told", [COUNTED, COUNTED - 1, COUNTED - ROWS])
def test_steps_of_which_an_actor_told_when_it_was_too_late_are_settled_without_a_word(
    told: int, caplog: pytest.LogCaptureFixture
) -> None:
    shared = shared_objects_of(told)

    shared.settle_steps(1)

    assert shared.status.row("sf-actor-1").get("env_steps") == COUNTED
    assert shared.status.row("sf-actor-0").get("env_steps") == 0
    assert caplog.text == ""


@pytest.mark.parametrize("told", [COUNTED + 1, COUNTED + 100, COUNTED - ROWS - 1])
def test_a_difference_too_large_is_settled_and_told_with_both_counts(
    told: int, caplog: pytest.LogCaptureFixture
) -> None:
    shared = shared_objects_of(told)

    shared.settle_steps(1)

    assert shared.status.row("sf-actor-1").get("env_steps") == COUNTED
    (record,) = caplog.records
    assert record.getMessage() == f"sf-actor-1: {COUNTED} env steps lie in its slots, {told} were reported"
    assert record.levelname == "ERROR"


def test_where_envs_have_many_agents_what_was_told_of_stands(caplog: pytest.LogCaptureFixture) -> None:
    # The slots hold agents' steps.
    shared = shared_objects_of(told=2, agents=3)

    shared.settle_steps(1)

    assert shared.status.row("sf-actor-1").get("env_steps") == 2
    assert caplog.text == ""
