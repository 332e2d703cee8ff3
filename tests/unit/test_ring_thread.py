"""What may get stuck in a ring is waited for as long as it makes sense, and left behind after that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from sfactory.clock import now
from sfactory.learner import ring_thread
from sfactory.learner.ring_thread import RingThread

BOUND_S = 30.0


@pytest.fixture
def ring() -> Iterator[threading.Event]:
    """What the thread waits for; let go after the test."""
    event = threading.Event()
    yield event
    event.set()


def test_work_that_ends_is_waited_for() -> None:
    ended = threading.Event()
    rings = RingThread(ended.set)

    rings.run(lambda: False)

    assert ended.is_set()
    rings.leave()


def test_what_work_raises_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ValueError("an illegal transition")

    with pytest.raises(ValueError, match="an illegal transition") as caught:
        RingThread(fail).run(lambda: False)

    assert "fail" in [entry.name for entry in caught.traceback]


def test_stuck_work_is_left_behind_once_the_run_is_over(
    ring: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_thread, "_LEAVE_S", 0.1)

    def hang() -> None:
        ring.wait(BOUND_S)

    rings = RingThread(hang)
    begun = now()

    rings.run(lambda: True)
    with caplog.at_level(logging.WARNING):
        rings.leave()

    assert now() - begun < BOUND_S
    assert "left a thread behind that waits for a ring" in caplog.text


def test_what_is_raised_after_the_run_is_over_is_not_lost(
    ring: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_thread, "_LEAVE_S", 0.1)

    def fail_late() -> None:
        ring.wait(BOUND_S)
        raise ValueError("late")

    rings = RingThread(fail_late)
    rings.run(lambda: True)
    ring.set()

    with pytest.raises(ValueError, match="late"):
        rings.leave()
