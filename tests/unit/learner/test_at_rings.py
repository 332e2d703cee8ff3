"""The board tells since when the first of a learner's threads has been at a ring."""

from __future__ import annotations

import threading

from sfactory.learner.batcher import RingUsage
from sfactory.shared.status import StatusBoard


def test_as_long_as_one_is_there_the_stamp_is_that_of_the_first() -> None:
    row = StatusBoard(["sf-learner-0"]).row("sf-learner-0")
    rings = RingUsage(row)
    rings.enter_ring()
    first = row.get("in_ring_since")

    def other() -> None:
        rings.enter_ring()
        stamps.append(row.get("in_ring_since"))
        rings.leave_ring()
        stamps.append(row.get("in_ring_since"))

    stamps: list[float] = []
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30.0)
    rings.leave_ring()

    assert first > 0
    assert stamps == [first, first]
    assert row.get("in_ring_since") == 0.0
