"""Published weights are read back bit by bit with their version, and all evaluators play the same candidate."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from sfactory.shared.weights import EvalWeights, SharedWeights, TornWeights


def pattern(seed: int, nbytes: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("publications", [1, 2, 3, 8])
def test_newest_publication_is_copied_with_its_version(publications: int) -> None:
    weights, target = SharedWeights(1000), np.zeros(1000, np.uint8)
    assert not weights.published.wait(0)

    for k in range(1, publications + 1):
        weights.publish(pattern(k), 7 * k)

    assert weights.published.wait(0)
    assert weights.publications == publications
    assert weights.read_into(target) == (publications, 7 * publications)
    for later in (97, 98):
        weights.publish(pattern(later), later)
    assert np.array_equal(target, pattern(publications))


def test_reader_that_is_always_overtaken_gives_up_and_one_that_was_stopped_within_a_copy_makes_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, times, moment, copy_s = SharedWeights(8), 2, 0.0, 10.0
    weights.publish(np.zeros(8, np.uint8), 0)
    monkeypatch.setattr("sfactory.clock.now", lambda: moment)

    class Overtaken(np.ndarray[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            nonlocal times, moment
            for _ in range(2 if times else 0):
                weights.publish(np.zeros(8, np.uint8), 0)
            times, moment = times - 1, moment + copy_s

    target = np.zeros(8, np.uint8).view(Overtaken)
    assert weights.read_into(target) == (5, 0)
    times, copy_s = -1, 0.25
    with pytest.raises(TornWeights, match=r"no whole copy of the weights within 5\.0 s"):
        weights.read_into(target)
    assert times == -1 - 20  # of 5 s, though 10 tries were over before


def publish_and_halt(weights: SharedWeights, source: np.ndarray, at: str, number: signal.Signals) -> None:
    """Publish, and send this process the signal ``at`` one of the moments at which a reader could be misled."""
    barriers = 0

    def barrier() -> None:
        nonlocal barriers
        barriers += 1
        if at == "half copied" and barriers == 1:
            half = weights.nbytes // 2
            weights._data[(weights.publications + 1) % 2][:half] = source[:half]
        if barriers == (2 if at == "copied and not confirmed" else 1):
            os.kill(os.getpid(), number)

    weights._barrier = barrier  # type: ignore[method-assign]
    weights.publish(source, 99)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("at", ["announced", "half copied", "copied and not confirmed"])
@pytest.mark.parametrize("before", [1, 2])
def test_previous_weights_are_read_if_the_writer_ends_or_stops_while_it_publishes(
    before: int, at: str, number: signal.Signals
) -> None:
    weights, target = SharedWeights(100_000), np.zeros(100_000, np.uint8)
    for k in range(1, before + 1):
        weights.publish(pattern(k, 100_000), k)
    writer = os.fork()
    if not writer:
        publish_and_halt(weights, pattern(99, 100_000), at, number)
        os._exit(1)
    try:
        _, status = os.waitpid(writer, os.WUNTRACED)
        assert os.WIFSTOPPED(status) or os.WTERMSIG(status) == number

        assert weights.read_into(target) == (before, before)
        assert np.array_equal(target, pattern(before, 100_000))
    finally:
        if number == signal.SIGSTOP:
            os.kill(writer, signal.SIGCONT)
            os.waitpid(writer, 0)

    if number == signal.SIGSTOP:  # it has finished
        assert weights.read_into(target) == (before + 1, 99)
        assert np.array_equal(target, pattern(99, 100_000))


def test_candidate_is_the_newest_publication_until_all_evaluators_are_done() -> None:
    weights, candidate = SharedWeights(1000), EvalWeights(1000, evaluators=2)
    target, counts = np.zeros(1000, np.uint8), [20.0, 4.0, 5.0, 0.25]
    assert (candidate.number, candidate.done) == (0, True)
    for version in (10, 20):
        weights.publish(pattern(version), version, [float(version), *counts[1:]])

    candidate.present([weights])
    weights.publish(pattern(30), 30)

    assert candidate.weights.read_into(target) == (1, 20)
    assert (candidate.number, candidate.version) == (1, 20)
    assert np.array_equal(target, pattern(20))
    candidate.mark_done(1, 1)
    with pytest.raises(AssertionError, match="candidate 1 is still being played"):
        candidate.present([weights])

    candidate.mark_done(0, 1)
    assert candidate.done
    assert (candidate.mean, candidate.judged) == (None, False)
    candidate.tell_mean(1, 2.5)
    candidate.mark_judged()
    assert (candidate.mean, candidate.judged) == (2.5, True)
    block, version, then = candidate.read()
    assert np.array_equal(block, pattern(20))
    assert (version, list(then.values())) == (20, counts)
    candidate.present([weights])
    assert (candidate.mean, candidate.judged) == (None, False)
    assert (candidate.number, candidate.version, candidate.done) == (2, 30, False)
