"""A deadline that has passed stays so, and a cadence is due at most once per period."""

from __future__ import annotations

import pytest

from sfactory import clock
from sfactory.clock import Deadline, Every


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(clock, "now", hands)
    return hands


def test_a_deadline_counts_down_to_zero_and_stays_there(hands: Hands) -> None:
    deadline = Deadline(10.0)
    seen = []

    for at in (1000.0, 1007.5, 1010.0, 1020.0):
        hands.at = at
        seen.append((deadline.left, deadline.passed))

    assert seen == [(10.0, False), (2.5, False), (0.0, True), (0.0, True)]


def test_a_cadence_is_due_a_full_period_after_its_last_beat(hands: Hands) -> None:
    every = Every(10.0)
    seen = []

    # A late beat (1025) moves the following ones: two are never close together.
    for at in (1000.0, 1009.0, 1010.0, 1010.5, 1025.0, 1030.0, 1035.0):
        hands.at = at
        seen.append((every.left, every.due()))

    assert [due for _, due in seen] == [False, False, True, False, True, False, True]
    assert [left for left, _ in seen] == [10.0, 1.0, 0.0, 9.5, 0.0, 5.0, 0.0]
