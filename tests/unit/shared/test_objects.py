"""The steps of a dead actor are those in its slots, and what executors have shared is freed."""

from __future__ import annotations

import weakref

import pytest

from sfactory.shared.objects import SharedObjects
from tests.support.parts import VECTOR, small_layout

ROWS = small_layout().rows
COUNTED = 7


@pytest.mark.parametrize(
    ("reported", "agents", "settled", "is_defect"),
    [
        (COUNTED, 1, COUNTED, False),
        (COUNTED - ROWS, 1, COUNTED, False),
        (COUNTED + 1, 1, COUNTED, True),
        (COUNTED - ROWS - 1, 1, COUNTED, True),
        (2, 3, 2, False),  # the slots hold agents' steps
    ],
)
def test_steps_of_a_dead_actor_are_settled(
    reported: int, agents: int, settled: int, is_defect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shared = SharedObjects(VECTOR, small_layout(agents=agents), weight_bytes=8)
    for slot, steps in zip(shared.table.slots_of(1), (COUNTED - 2, 2), strict=True):
        shared.table.begin(slot)
        shared.table.count_steps(slot, steps)
    shared.status.row("sf-actor-1").set("env_steps", reported)

    shared.settle_steps(1)

    assert [shared.status.row(f"sf-actor-{actor}").get("env_steps") for actor in range(2)] == [0, settled]
    text = f"sf-actor-1: {COUNTED} env steps lie in its slots, {reported} were reported"
    assert [record.getMessage() for record in caplog.records] == [text] * is_defect


def test_what_an_earlier_executor_has_shared_is_freed_before_the_next_one_shares() -> None:
    earlier = SharedObjects(VECTOR, small_layout(), weight_bytes=8)
    vars(earlier)["executor"] = {"shares": earlier}
    trajectories = weakref.ref(earlier.trajectories)
    del earlier

    SharedObjects(VECTOR, small_layout(), weight_bytes=8)

    assert trajectories() is None
