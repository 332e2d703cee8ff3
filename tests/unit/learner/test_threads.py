"""Loops that may get stuck in a ring are waited for as long as it makes sense, and left behind after that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from sfactory.clock import now
from sfactory.learner import threads as threads_module
from sfactory.learner.threads import Threads

BOUND_S = 30.0


@pytest.fixture
def ring() -> Iterator[threading.Event]:
    """What a thread waits for; let go after the test."""
    event = threading.Event()
    yield event
    event.set()


def hanging(ring: threading.Event) -> None:
    ring.wait(BOUND_S)


def fail() -> None:
    raise ValueError("an illegal transition")


def test_what_a_loop_raises_is_raised_where_it_is_waited_for_with_its_traceback() -> None:
    threads = Threads()
    threads.start("loop", fail)

    with pytest.raises(ValueError, match="an illegal transition") as caught:
        threads.wait(lambda: False)

    assert "fail" in [entry.name for entry in caught.traceback]


def test_a_failure_is_raised_although_another_loop_is_stuck(ring: threading.Event) -> None:
    threads = Threads()
    threads.start("stuck", lambda: hanging(ring))
    threads.start("loop", fail)
    begun = now()

    with pytest.raises(ValueError, match="an illegal transition"):
        threads.wait(lambda: False)

    assert threads.failed
    assert now() - begun < BOUND_S


def test_of_two_failures_the_first_is_raised(ring: threading.Event) -> None:
    threads = Threads()

    def second() -> None:
        ring.wait(BOUND_S)
        raise KeyError("as a consequence")

    threads.start("second", second)
    threads.start("first", fail)
    with pytest.raises(ValueError, match="illegal"):
        threads.wait(lambda: False)
    ring.set()

    with pytest.raises(ValueError, match="illegal"):
        threads.leave()


def test_a_stuck_loop_is_left_behind_once_the_run_is_over(
    ring: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_module, "_LEAVE_S", 0.1)
    threads = Threads()
    threads.start("stuck", lambda: hanging(ring))
    begun = now()

    threads.wait(lambda: True)
    with caplog.at_level(logging.WARNING):
        threads.leave()

    assert now() - begun < BOUND_S
    assert "left a thread behind that waits for a ring" in caplog.text


def test_late_failure_is_raised_by_leave(ring: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "_LEAVE_S", 0.1)

    def fail_late() -> None:
        ring.wait(BOUND_S)
        raise ValueError("late")

    threads = Threads()
    threads.start("late", fail_late)
    threads.wait(lambda: True)
    ring.set()

    with pytest.raises(ValueError, match="late"):
        threads.leave()
