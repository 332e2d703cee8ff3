"""Times are averaged between messages, and none is lost."""

from __future__ import annotations

import math
import threading

import pytest

from sfactory.learner import timing_stats
from sfactory.learner.timing_stats import Timings


def test_means_are_of_the_stretches_since_the_last_message_that_was_sent() -> None:
    timings = Timings()
    for name, seconds in (("grad", 0.2), ("grad", 0.6), ("publish", 0.002)):
        timings.add(name, seconds)
    assert timings.message(0, updates=8).update_ms == pytest.approx(100.0)

    timings.add("grad", 0.4)  # the message before could not be sent
    message = timings.message(3, updates=2)
    timings.add("load", 0.3)  # between message and clear: of the next means
    timings.clear()

    assert message.policy == 3
    means = message.grad_ms, message.update_ms, message.publish_ms, message.load_ms
    assert means == pytest.approx((400.0, 120.0, 2.0, math.nan), nan_ok=True)
    following = timings.message(3, updates=0)
    means = following.grad_ms, following.update_ms, following.publish_ms, following.load_ms
    assert means == pytest.approx((math.nan, math.nan, math.nan, 300.0), nan_ok=True)


def test_failed_stretch_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.5, 20.0])
    monkeypatch.setattr(timing_stats, "now", lambda: next(moments))
    timings = Timings()

    with timings.stretch("grad"):
        pass
    with pytest.raises(RuntimeError), timings.stretch("grad"):
        raise RuntimeError

    assert timings.message(0, 1).grad_ms == 2500.0


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
