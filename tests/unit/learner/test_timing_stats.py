"""Times are averaged between messages, and none is lost."""

from __future__ import annotations

import math
import threading

import pytest

from sfactory.learner import timing_stats as timings_module
from sfactory.learner.timing_stats import STRETCHES, Timings
from sfactory.messages import LearnerTimes


def test_means_are_of_the_stretches_since_they_were_cleared() -> None:
    timings = Timings()
    for seconds in (0.010, 0.030):
        timings.add("grad", seconds)
    timings.add("publish", 0.002)

    first = timings.means_ms()
    timings.clear()
    timings.add("grad", 0.5)
    second = timings.means_ms()

    assert first["grad"] == pytest.approx(20.0)
    assert first["publish"] == pytest.approx(2.0)
    assert second["grad"] == pytest.approx(500.0)
    assert all(math.isnan(second[name]) for name in STRETCHES if name != "grad")


def test_stretch_between_message_and_clear_is_in_the_next_means() -> None:
    timings = Timings()
    timings.add("load", 0.1)
    timings.means_ms()

    timings.add("load", 0.3)
    timings.clear()

    assert timings.means_ms()["load"] == pytest.approx(300.0)


def test_failed_stretch_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.5, 20.0])
    monkeypatch.setattr(timings_module, "now", lambda: next(moments))
    timings = Timings()

    with timings.stretch("grad"):
        pass
    with pytest.raises(RuntimeError), timings.stretch("grad"):
        raise RuntimeError

    assert timings.means_ms()["grad"] == 2500.0


def test_update_time_survives_an_unsent_message() -> None:
    timings = Timings()
    timings.add("grad", 0.8)
    assert timings.message(0, updates=8).update_ms == pytest.approx(100.0)

    timings.add("grad", 0.4)  # the message before could not be sent
    message = timings.message(3, updates=2)
    timings.clear()

    assert isinstance(message, LearnerTimes)
    assert message.policy == 3
    assert message.grad_ms == pytest.approx(600.0)
    assert message.update_ms == pytest.approx(120.0)
    assert math.isnan(message.load_ms)
    assert math.isnan(timings.message(3, updates=0).update_ms)


def test_stretches_of_many_threads_add_up() -> None:
    timings = Timings()

    def work() -> None:
        for _ in range(2000):
            timings.add("load", 0.001)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    seconds, count = timings._sums["load"]
    assert count == 16_000
    assert seconds == pytest.approx(16.0)
