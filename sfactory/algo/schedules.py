"""Coefficients over time, such as learning rates. Stateless: callers keep the value and their counters."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

_FACTOR = 1.5
_TOLERANCE = 2.0
_COEFFICIENT_UP, _COEFFICIENT_DOWN = 1.5, 0.5
_COEFFICIENT_MIN, _COEFFICIENT_MAX = 1e-4, 1e2


def linear_decay(initial: float, done: float, total: float) -> float:
    """``initial`` at the start, 0 once ``done`` reaches ``total`` > 0 (both in the same unit), a line between."""
    return initial * min(1.0, max(0.0, 1.0 - done / total))


@dataclass(frozen=True)
class PiecewiseLinear:
    """Linear interpolation. ``points``: (where, value), at least one, with ``where`` ascending."""

    points: tuple[tuple[float, float], ...]

    def value(self, at: float) -> float:
        """Exact at the points; the first value before them, the last value after them."""
        after = bisect_right(self.points, at, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        left, low = self.points[after - 1]
        if after == len(self.points):
            return low
        right, high = self.points[after]
        return low + (high - low) * ((at - left) / (right - left))


@dataclass(frozen=True)
class KlAdaptive:
    """Keeps the divergence of an update near ``threshold`` by the learning rate, within [minimum, maximum].

    The divergence is that of the behavior policy and the policy after an update: of the last minibatch, if the
    caller adapts per minibatch, or the mean over an epoch. Source: Heess et al. 2017, "Emergence of
    locomotion behaviours", the rule for its penalty, applied to the rate.
    """

    threshold: float
    minimum: float
    maximum: float

    def next(self, learning_rate: float, kl: float) -> float:
        """The rate after ``learning_rate``: /1.5 if kl > 2 * threshold, *1.5 if kl < threshold / 2, else the same.

        A NaN divergence, as of a skipped update, changes nothing.
        """
        if kl > _TOLERANCE * self.threshold:
            learning_rate /= _FACTOR
        elif kl < self.threshold / _TOLERANCE:
            learning_rate *= _FACTOR
        return self.bounded(learning_rate)

    def bounded(self, learning_rate: float) -> float:
        """The nearest rate within [minimum, maximum]."""
        return min(self.maximum, max(self.minimum, learning_rate))


@dataclass(frozen=True)
class KlCoefficient:
    """Keeps the divergence of a dataset's updates near ``target`` by the weight of the penalty on it.

    Source: Schulman et al. 2017, "Proximal policy optimization algorithms", section 4; the tolerance of 2, and factors
    of 1.5 and 0.5 for the paper's 2 and 1/2, are RLlib's. The weight stays within [1e-4, 1e2].
    """

    target: float

    def next(self, coefficient: float, kl: float) -> float:
        """The weight after ``coefficient``: *1.5 if kl > 2 * target, *0.5 if kl < target / 2, else the same.

        A NaN divergence changes nothing.
        """
        if kl > _TOLERANCE * self.target:
            coefficient *= _COEFFICIENT_UP
        elif kl < self.target / _TOLERANCE:
            coefficient *= _COEFFICIENT_DOWN
        return self.bounded(coefficient)

    def bounded(self, coefficient: float) -> float:
        """The nearest weight within [1e-4, 1e2]."""
        return min(_COEFFICIENT_MAX, max(_COEFFICIENT_MIN, coefficient))
