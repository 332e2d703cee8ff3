"""Elo ratings reproduce the differences that results were made from."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.play.ratings import rating_against, ratings


def expected_points(strengths: list[float], matches: int) -> np.ndarray:
    difference = np.subtract.outer(strengths, strengths)
    return matches / (1.0 + 10.0 ** (-difference / 400.0))


def test_ratings_are_those_that_results_were_drawn_from() -> None:
    strengths = [-150.0, 0.0, -50.0, 200.0]
    points = expected_points(strengths, 100_000)
    np.fill_diagonal(points, 0.0)

    found = ratings(points, points + points.T)

    assert found == pytest.approx(strengths, abs=1.0)
    assert rating_against(np.array(strengths[:3]), points[3, :3], np.full(3, 1e5)) == pytest.approx(200.0, abs=1.0)


def test_who_always_wins_has_a_finite_rating_and_who_has_not_played_has_none() -> None:
    found = ratings(np.array([[0.0, 10.0], [0.0, 0.0]]), np.array([[0.0, 10.0], [10.0, 0.0]]))

    # 10.5 of 11 points, with the drawn match that is added.
    assert found[0] - found[1] == pytest.approx(400.0 * np.log10(10.5 / 0.5), abs=1.0)
    assert sum(found) == pytest.approx(0.0, abs=0.1)
    with pytest.raises(ValueError, match="at least one match"):
        rating_against(np.zeros(2), np.zeros(2), np.zeros(2))
