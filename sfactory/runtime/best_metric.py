"""Room: what the best policy is known by. In: statistics of episodes. Out: the window of one of them, a warning."""

from __future__ import annotations

from sfactory.messages import TRUE_OBJECTIVE
from sfactory.runtime.metrics import EpisodeStats, ExtraStats, Window

_REWARD = "reward"  # the save_best_metric that every env has: the return


class BestMetric:
    """The series that save_best_metric names, by which the best policy is known."""

    def __init__(self, metric: str, stats_avg: int, episodes: EpisodeStats, extras: ExtraStats) -> None:
        self._metric, self._stats_avg, self._episodes, self._extras = metric, stats_avg, episodes, extras
        self._checked = metric == _REWARD

    def window(self) -> Window | None:
        """Its last values; None if there are none."""
        if self._metric == _REWARD:
            return self._episodes.returns
        return self._extras.window(self._metric)

    def check(self) -> str | None:
        """A warning if the first stats_avg episodes, whose extra statistics came before them, do not know it."""
        if self._checked or self._episodes.episodes < self._stats_avg:
            return None
        self._checked = True
        metric = self._metric
        if self.window() is not None:
            return None
        if metric == TRUE_OBJECTIVE:
            self._metric = _REWARD  # for good: a best policy by one measure cannot be compared by another
            consequence = "the best policy is the one with the highest return"
        else:
            consequence = "no best policy is saved until one does"
        return (
            f"save_best_metric={metric}: none of the first {self._episodes.episodes} episodes reported it "
            f"(env reports: {', '.join([_REWARD, *self._extras.names])}); {consequence}"
        )
