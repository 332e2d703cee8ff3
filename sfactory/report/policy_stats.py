"""Room: what is known of one policy, or of all together. In: messages about it. Out: windows, parts of a row.

Room: what the best policy is known by. In: statistics of episodes. Out: the window of one of them, a warning.
"""

from __future__ import annotations

from sfactory.learner.timing_stats import LagStats
from sfactory.messages import TRUE_OBJECTIVE, EpisodeExtras, EpisodesDone, LearnerTimes, TrainStats
from sfactory.pbt.ranking import LENGTH, REWARD
from sfactory.report.episode_stats import EpisodeStats, ExtraStats, Window
from sfactory.report.scalars import LastTimes, Row, train_scalars, window_scalars

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


class PolicyStats:
    """Episodes and updates in this session. last: what a learner told last."""

    def __init__(
        self, stats_avg: int, metric: str, earlier_episodes: int = 0, earlier_best: float | None = None
    ) -> None:
        """``metric``: see BestMetric. The rest: what sessions before this one have come to."""
        self._earlier_episodes, self._earlier_best = earlier_episodes, earlier_best
        self.episodes = EpisodeStats(stats_avg)
        self.extras = ExtraStats(stats_avg)
        self.best_metric = BestMetric(metric, stats_avg, self.episodes, self.extras)
        self.last: TrainStats | None = None
        self.lag = LagStats()
        self._times = LastTimes()

    def add_episodes(self, message: EpisodesDone) -> str | None:
        """Take in episodes; a warning about what they do not report, if there is any."""
        self.episodes.add(message.returns, message.lengths)
        return self.best_metric.check()

    def add_extras(self, message: EpisodeExtras) -> bool:
        """Take in values of an extra statistic; False if it is one name more than are kept."""
        return self.extras.add(message.name, message.values)

    def add_stats(self, stats: TrainStats) -> None:
        """Take in what a learner tells of its updates."""
        self.last = stats
        self.lag.add(stats.lag, stats.updates)

    def add_times(self, times: LearnerTimes) -> None:
        """Take in what a learner tells of its times."""
        self._times.add(times)

    @property
    def num_episodes(self) -> int:
        """Of all sessions."""
        return self._earlier_episodes + self.episodes.episodes

    @property
    def true_objective(self) -> Window:
        """What envs call their objective; the return where they do not."""
        return self.extras.window(TRUE_OBJECTIVE) or self.episodes.returns

    @property
    def best_return_mean(self) -> float | None:
        """The best mean of any stats_avg episodes in a row, in all sessions."""
        known = [best for best in (self._earlier_best, self.episodes.best_return_mean) if best is not None]
        return max(known, default=None)

    def window_mean(self) -> float | None:
        """The mean of save_best_metric over its last stats_avg values, once there are as many."""
        window = self.best_metric.window()
        return window.mean if window is not None and window.full else None

    def full_mean(self, name: str) -> float | None:
        """The mean of ``reward``, ``length`` or an extra statistic over its last stats_avg values; None before that.

        The true objective is what envs tell as such, and nothing else: returns are no measure beside it.
        """
        known = {REWARD: self.episodes.returns, LENGTH: self.episodes.lengths}
        window = known[name] if name in known else self.extras.window(name)
        return window.mean if window is not None and window.full else None

    def forget_episodes(self) -> None:
        """Begin new windows; counts and bests stay."""
        self.episodes.forget_last()
        self.extras.forget_last()

    def standing(self, env_steps: int) -> dict[str, float | None]:
        """What summary.json tells of one of several policies, which has learned from so many env steps."""
        return {
            "env_steps": env_steps,
            "episodes": self.num_episodes,
            "episode_return_mean": self.episodes.returns.mean,
            "best_episode_return_mean": self.best_return_mean,
            "true_objective_mean": self.true_objective.mean,
        }

    def scalars_of(self, policy: int, env_steps: int) -> Row:
        """``scalars`` under names that tell whose they are, and how far that policy has learned."""
        own = self.scalars() | {"perf/trained_env_steps": env_steps}
        return {f"policy_{policy}/{name}": value for name, value in own.items()}

    def scalars(self) -> Row:
        """Of episodes and updates."""
        row: Row = {"train/episodes": self.num_episodes}
        row |= window_scalars("train/episode_return", self.episodes.returns)
        row |= window_scalars("train/true_objective", self.true_objective)
        row |= window_scalars("train/episode_length", self.episodes.lengths)
        for name, window in self.extras.windows().items():
            row |= window_scalars(f"train/extra/{name}", window)
        row["train/best_episode_return_mean"] = self.best_return_mean
        return row | train_scalars(self.last) | self._times.scalars()
