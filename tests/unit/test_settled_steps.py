"""Steps of an actor that has died are those in its slots; what it told of may be less, by one step of one split."""

from __future__ import annotations

import pytest

from sfactory.supervise.shared_objects import Wiring
from tests.support.parts import VECTOR, small_layout

ROWS = small_layout().rows
COUNTED = 7


def wiring_of(told: int, agents: int = 1) -> Wiring:
    """Actor 1 has counted COUNTED steps in two of its slots, and told of so many."""
    wiring = Wiring(VECTOR, small_layout(agents=agents), weight_bytes=8)
    for slot, steps in zip(wiring.table.slots_of(1), (COUNTED - 2, 2), strict=True):
        wiring.table.begin(slot)
        wiring.table.count_steps(slot, steps)
    wiring.status.row("sf-actor-1").set("env_steps", told)
    return wiring


@pytest.mark.parametrize("told", [COUNTED, COUNTED - 1, COUNTED - ROWS])
def test_steps_of_which_an_actor_told_when_it_was_too_late_are_settled_without_a_word(
    told: int, caplog: pytest.LogCaptureFixture
) -> None:
    wiring = wiring_of(told)

    wiring.settle_steps(1)

    assert wiring.status.row("sf-actor-1").get("env_steps") == COUNTED
    assert wiring.status.row("sf-actor-0").get("env_steps") == 0
    assert caplog.text == ""


@pytest.mark.parametrize("told", [COUNTED + 1, COUNTED + 100, COUNTED - ROWS - 1])
def test_a_difference_too_large_is_settled_and_told_with_both_counts(
    told: int, caplog: pytest.LogCaptureFixture
) -> None:
    wiring = wiring_of(told)

    wiring.settle_steps(1)

    assert wiring.status.row("sf-actor-1").get("env_steps") == COUNTED
    (record,) = caplog.records
    assert record.getMessage() == f"sf-actor-1: {COUNTED} env steps lie in its slots, {told} were told of"
    assert record.levelname == "ERROR"


def test_where_envs_have_many_agents_what_was_told_of_stands(caplog: pytest.LogCaptureFixture) -> None:
    # The slots hold agents' steps.
    wiring = wiring_of(told=2, agents=3)

    wiring.settle_steps(1)

    assert wiring.status.row("sf-actor-1").get("env_steps") == 2
    assert caplog.text == ""
