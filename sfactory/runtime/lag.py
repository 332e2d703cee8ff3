"""Room: by how many updates the behavior policy was older than the learner. In: a learner's reports. Out: PolicyLag."""

from __future__ import annotations

import math

from sfactory.messages import TrainStats
from sfactory.runtime.summary import PolicyLag


class LagOfSession:
    """Minimum, mean and maximum policy lag over all updates of this session."""

    def __init__(self) -> None:
        self._minimum, self._maximum = float("inf"), 0.0
        self._total, self._updates = 0.0, 0.0

    def add(self, stats: TrainStats) -> None:
        """Take in a report, unless none of its steps came new."""
        if math.isnan(stats.lag_mean):
            return
        self._minimum = min(self._minimum, stats.lag_min)
        self._maximum = max(self._maximum, stats.lag_max)
        self._total += stats.lag_mean * stats.updates
        self._updates += stats.updates

    def value(self) -> PolicyLag:
        """So far."""
        if not self._updates:
            return PolicyLag()
        return PolicyLag(self._minimum, self._total / self._updates, self._maximum)


def lag_of(stats: TrainStats | None) -> PolicyLag:
    """The policy lag in one report, of steps that came new."""
    return PolicyLag() if stats is None else _lag(stats.lag_min, stats.lag_mean, stats.lag_max)


def replay_lag_of(stats: TrainStats | None) -> PolicyLag:
    """The same of replayed steps."""
    return PolicyLag() if stats is None else _lag(stats.replay_lag_min, stats.replay_lag_mean, stats.replay_lag_max)


def _lag(minimum: float, mean: float, maximum: float) -> PolicyLag:
    return PolicyLag() if math.isnan(mean) else PolicyLag(minimum, mean, maximum)
