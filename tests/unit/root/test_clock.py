"""A cadence is due at most once per period, and timeouts scale together."""

from __future__ import annotations

import pytest

from sfactory import clock
from sfactory.clock import TIMEOUTS, Every, Timeouts


def test_a_cadence_is_due_a_full_period_after_its_last_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: 1000.0)
    every = Every(10.0)
    seen = []

    # A late beat (1025) moves the following ones: two are never close together.
    for at in (1000.0, 1009.0, 1010.0, 1010.5, 1025.0, 1030.0, 1035.0):
        monkeypatch.setattr(clock, "now", lambda at=at: at)
        seen.append((every.left, every.due()))

    assert [due for _, due in seen] == [False, False, True, False, True, False, True]
    assert [left for left, _ in seen] == [10.0, 1.0, 0.0, 9.5, 0.0, 5.0, 0.0]


def test_one_positive_factor_scales_all_timeouts() -> None:
    scaled = Timeouts().scaled(0.5)

    assert Timeouts() == TIMEOUTS
    assert (scaled.ring, scaled.stall, scaled.save_grace, scaled.tracker) == (5.0, 15.0, 8.0, 120.0)
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"):
            Timeouts().scaled(factor)
