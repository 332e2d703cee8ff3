"""Loops that may get stuck in a ring are waited for as long as it makes sense, and left behind after that."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sfactory.clock import now
from sfactory.learner import threads as threads_module
from sfactory.learner.threads import Threads

BOUND_S = 30.0


@pytest.fixture
def ring() -> Iterator[threading.Event]:
    """Stuck threads wait for it; set after the test."""
    event = threading.Event()
    yield event
    event.set()


def fail() -> None:
    raise ValueError("an illegal transition")


def test_what_a_loop_raises_is_raised_where_it_is_waited_for_with_its_traceback() -> None:
    threads = Threads()
    threads.start("loop", fail)

    with pytest.raises(ValueError, match="an illegal transition") as caught:
        threads.wait(lambda: False)

    assert "fail" in [entry.name for entry in caught.traceback]


def test_a_failure_is_raised_although_another_loop_is_stuck(ring: threading.Event) -> None:
    def fail_later() -> None:
        ring.wait(BOUND_S)
        raise KeyError("as a consequence")

    threads, begun = Threads(), now()
    threads.start("second", fail_later)
    threads.start("first", fail)

    with pytest.raises(ValueError, match="an illegal transition"):
        threads.wait(lambda: False)

    assert threads.failed
    assert now() - begun < BOUND_S
    ring.set()
    with pytest.raises(ValueError, match="illegal"):  # of two failures the first
        threads.leave()


@pytest.mark.parametrize("fails", [False, True])
def test_a_stuck_loop_is_left_behind_once_the_run_is_over_and_a_late_failure_is_raised(
    fails: bool, ring: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_late() -> None:
        ring.wait(BOUND_S)
        raise ValueError("late")

    monkeypatch.setattr(threads_module, "_LEAVE_S", 0.1)
    threads, begun = Threads(), now()
    threads.start("stuck", fail_late)

    threads.wait(lambda: True)
    if fails:
        ring.set()
        with pytest.raises(ValueError, match="late"):
            threads.leave()
    else:
        threads.leave()
        assert "left a thread behind that waits for a ring" in caplog.text
    assert now() - begun < BOUND_S
