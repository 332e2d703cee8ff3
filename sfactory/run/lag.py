"""Room: by how many updates the behavior policy was older than the learner. In: a learner's reports. Out: PolicyLag."""

from __future__ import annotations

from sfactory.messages import TrainStats
from sfactory.run.summary import PolicyLag


class LagOfSession:
    """Minimum, mean and maximum policy lag over all updates of this session."""

    def __init__(self) -> None:
        self._minimum, self._maximum = float("inf"), 0.0
        self._total, self._updates = 0.0, 0.0

    def add(self, stats: TrainStats) -> None:
        """Take in a report."""
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
    """The policy lag in one report."""
    return PolicyLag() if stats is None else PolicyLag(stats.lag_min, stats.lag_mean, stats.lag_max)
