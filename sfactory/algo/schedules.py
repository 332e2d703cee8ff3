"""Coefficients over time, such as learning rates. Stateless: callers keep the value and their counters."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

_TOLERANCE = 2.0


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
    """Keeps the divergence of updates near ``target`` by a value within [minimum, maximum].

    The value changes where the divergence is more than twice the target, or less than half of it: it is multiplied by
    ``up`` or divided by ``down``. ``damps``: a greater value makes the divergence smaller.
    """

    target: float
    minimum: float
    maximum: float
    up: float
    down: float
    damps: bool

    def next(self, value: float, kl: float) -> float:
        """The value after ``value``. A NaN divergence, as of a skipped update, changes nothing."""
        if kl > _TOLERANCE * self.target:
            value = value * self.up if self.damps else value / self.down
        elif kl < self.target / _TOLERANCE:
            value = value / self.down if self.damps else value * self.up
        return self.bounded(value)

    def bounded(self, value: float) -> float:
        """The nearest value within [minimum, maximum]."""
        return min(self.maximum, max(self.minimum, value))


def kl_adaptive_rate(threshold: float, minimum: float, maximum: float) -> KlAdaptive:
    """The rule of learning rates: /1.5 where an update diverges too far, *1.5 where too little.

    The divergence is from the behavior policy to the policy after an update. Source: Heess et al. 2017, "Emergence of
    locomotion behaviours", the rule for its penalty, applied to the rate.
    """
    return KlAdaptive(threshold, minimum, maximum, up=1.5, down=1.5, damps=False)


def kl_penalty_weight(target: float) -> KlAdaptive:
    """The rule of the penalty's weight: *1.5 where a dataset's updates diverge too far, /2 where too little.

    Source: Schulman et al. 2017, "PPO", section 4; the tolerance and the factors are RLlib's.
    """
    return KlAdaptive(target, 1e-4, 1e2, up=1.5, down=2.0, damps=True)
