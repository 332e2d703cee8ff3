"""All evaluators play the same weights, and nobody is given others before everybody is done with these."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.shared.weights import EvalWeights, SharedWeights


def published(number: int, version: int, weights: SharedWeights) -> None:
    weights.publish(np.full(weights.nbytes, number, np.uint8), version)


def test_a_candidate_is_the_newest_publication_and_stays_what_it_is() -> None:
    weights, candidate = SharedWeights(100), EvalWeights(100, evaluators=2)
    assert (candidate.number, candidate.done) == (0, True)
    published(1, 10, weights)
    published(2, 20, weights)

    candidate.present(weights)
    published(3, 30, weights)

    read = np.zeros(100, np.uint8)
    assert candidate.weights.read_into(read) == (1, 20)
    assert (candidate.number, candidate.version) == (1, 20)
    assert read.tolist() == [2] * 100


def test_the_next_candidate_waits_until_all_are_done_with_this_one() -> None:
    weights, candidate = SharedWeights(8), EvalWeights(8, evaluators=2)
    published(1, 10, weights)
    candidate.present(weights)

    candidate.mark_done(1, 1)
    with pytest.raises(AssertionError, match="candidate 1 is still being played"):
        candidate.present(weights)
    candidate.mark_done(0, 1)

    assert candidate.done
    candidate.present(weights)
    assert (candidate.number, candidate.done) == (2, False)
