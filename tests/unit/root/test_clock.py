"""A cadence is due at most once per period, and timeouts scale together."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory import clock
from sfactory.clock import TIMEOUTS, Awake, Every, Timeouts, looks


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


def test_time_awake_has_no_pauses_whichever_thread_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1000.0
    monkeypatch.setattr(clock, "now", lambda: at)
    awake = Awake()
    seen = []

    monkeypatch.setattr(clock, "_MOST_PAUSES", 2)

    for seconds in (0.5, 5.0, 0.5, 3600.0, 0.5, 10.0):  # PAUSE_S of a pause counts
        at += seconds
        seen.append((awake.since(1000.0), awake.since(1005.4)))
        awake.look()
        assert awake.since(1000.0) == seen[-1][0]

    assert [whole for whole, _ in seen] == pytest.approx([0.5, 2.5, 3.0, 5.0, 5.5, 7.5])
    assert [later for _, later in seen[:5]] == pytest.approx([0.0, 0.0, 0.5, 2.5, 3.0])


def test_time_in_which_no_thread_could_look_but_one_worked_is_time_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    at, worked = 1000.0, 5.0
    monkeypatch.setattr(clock, "now", lambda: at)
    monkeypatch.setattr("time.process_time", lambda: worked)
    awake = Awake()

    for seconds, work in ((30.0, 29.0), (30.0, 4.0)):  # of one thread in C; of several, until they were stopped
        at += seconds
        worked += work
        awake.look()

    assert awake.seconds == awake.since(1000.0) == 32.0


def test_one_positive_factor_scales_all_timeouts() -> None:
    scaled = Timeouts().scaled(0.5)

    assert Timeouts() == TIMEOUTS
    assert (scaled.ring, scaled.stall, scaled.save_grace, scaled.tracker) == (5.0, 15.0, 8.0, 120.0)
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"):
            Timeouts().scaled(factor)


def test_looks_of_a_wait_come_at_once_grow_rare_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [0.0]
    monkeypatch.setattr(clock, "now", lambda: moments[-1])
    monkeypatch.setattr("time.sleep", lambda seconds: moments.append(moments[-1] + seconds))

    count = sum(1 for _ in looks(lambda: moments[-1] >= 10.0, 0.5))

    assert count == len(moments)
    pauses = np.diff(moments).round(12)
    assert (pauses[0], pauses.max()) == (0.0003, pytest.approx(0.5))
    assert (pauses <= np.maximum(0.0003, np.array(moments[:-1]) / 7.99)).all()
    assert sum(1 for _ in looks(lambda: True, 0.5)) == 1
