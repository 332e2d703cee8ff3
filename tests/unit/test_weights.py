"""Published weights are read back bit by bit, with the version they belong to."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest

from sfactory.shared.weights import SharedWeights, TornWeights


def read_one(weights: SharedWeights) -> None:
    target = np.zeros(weights.nbytes, np.uint8)
    assert weights.published.wait(60)
    publication, version = weights.read_into(target)
    raise SystemExit(100 * publication + 10 * version + int(target[-1]))


def pattern(seed: int, nbytes: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def test_nothing_is_published_at_first() -> None:
    weights = SharedWeights(1000)

    assert weights.nbytes == 1000
    assert weights.publications == 0
    assert not weights.published.wait(0)


@pytest.mark.parametrize("publications", [1, 2, 3, 8])
def test_the_last_publication_is_read_with_its_version(publications: int) -> None:
    weights, target = SharedWeights(1000), np.zeros(1000, np.uint8)

    for k in range(1, publications + 1):
        weights.publish(pattern(k), 7 * k)

    assert weights.published.wait(0)
    assert weights.publications == publications
    assert weights.read_into(target) == (publications, 7 * publications)
    assert np.array_equal(target, pattern(publications))


def test_a_copy_is_the_readers_own() -> None:
    weights, target = SharedWeights(1000), np.zeros(1000, np.uint8)
    weights.publish(pattern(1), 1)
    weights.read_into(target)

    weights.publish(pattern(2), 2)
    weights.publish(pattern(3), 3)

    assert np.array_equal(target, pattern(1))


def test_a_child_reads_what_was_published_here() -> None:
    weights = SharedWeights(1000)
    child = multiprocessing.get_context("spawn").Process(target=read_one, args=(weights,))
    child.start()

    weights.publish(np.full(1000, 5, np.uint8), 2)
    child.join(60)

    assert child.exitcode == 100 + 20 + 5


def test_weights_of_another_size_are_refused() -> None:
    weights = SharedWeights(1000)
    weights.publish(pattern(1), 1)

    with pytest.raises(ValueError, match="broadcast"):
        weights.publish(pattern(2, nbytes=999), 2)

    target = np.zeros(1000, np.uint8)
    assert weights.read_into(target) == (1, 1)
    assert np.array_equal(target, pattern(1))


def test_a_reader_that_is_never_left_alone_gives_up_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfactory.shared.weights._READ_LIMIT_S", 0.05)
    weights = SharedWeights(8)
    weights.publish(np.zeros(8, np.uint8), 0)

    class Overtaken(np.ndarray[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            for _ in range(2):
                weights.publish(np.zeros(8, np.uint8), 0)

    with pytest.raises(TornWeights, match=r"no whole copy of the weights within 0\.05 s"):
        weights.read_into(np.zeros(8, np.uint8).view(Overtaken))
