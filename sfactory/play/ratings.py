"""Elo ratings from the results of matches.

A difference of 400 means that the better one gets ten times the points of the other. Ratings maximize the likelihood of
the results (Bradley and Terry 1952); a drawn match is added to each pair that has met, so that they stay finite.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SCALE = 400.0
_FAR = 4000.0  # beyond all that the added draws allow
_SWEEPS = 200


def rating_against(others: Array, points: Array, matches: Array) -> float:
    """The rating with which these results are expected: [K] ratings of others, points against each, and matches.

    A match gives 1 point to its winner, 0.5 to both if it is drawn. Raises ValueError without a match.
    """
    met = matches > 0
    if not met.any():
        raise ValueError("a rating needs at least one match")
    others, points, matches = others[met], points[met] + 0.5, matches[met] + 1.0
    low, high = float(others.min()) - _FAR, float(others.max()) + _FAR
    while high - low > 0.01:
        rating = 0.5 * (low + high)
        expected = matches / (1.0 + 10.0 ** ((others - rating) / _SCALE))
        low, high = (rating, high) if expected.sum() < points.sum() else (low, rating)
    return 0.5 * (low + high)


def ratings(points: Array, matches: Array) -> list[float]:
    """Ratings of N players, with mean 0. points, matches: [N, N] - points of the row's player against the column's."""
    found = np.zeros(len(points))
    for _ in range(_SWEEPS):
        before = found.copy()
        for player in range(len(found)):
            found[player] = rating_against(found, points[player], matches[player])
        found -= found.mean()
        if np.abs(found - before).max() < 0.1:
            break
    return [float(rating) for rating in found]
