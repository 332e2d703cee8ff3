"""Episode and update statistics of one policy, or of all policies together."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from sfactory.config.schema import Config
from sfactory.experiment.resume import ResumedPolicy
from sfactory.layout import choose_mapping
from sfactory.messages import TRUE_OBJECTIVE, LearnerTimes, TrainStats
from sfactory.pbt.ranking import LENGTH, REWARD
from sfactory.report.episode_stats import Best, EpisodeStats, ExtraStats, Window
from sfactory.report.scalars import Row, train_scalars, window_scalars
from sfactory.shared.timing_stats import LagStats
from sfactory.statistics import sum_to_zero

_TIMES = tuple(name for name in LearnerTimes._fields if name != "policy")


class PolicyStats:
    """Episodes and updates of this session. last: the learner's newest report."""

    def __init__(self, stats_avg: int, best_metric: str, earlier: ResumedPolicy, plays_itself: bool = False) -> None:
        """best_metric: the flag save_best_metric. earlier: before this session. plays_itself: see ``plays_itself``."""
        self._plays_itself = plays_itself
        self._stats_avg, self._best_metric, self._earlier = stats_avg, best_metric, earlier
        self._metric_is_known, self._metric_is_due = best_metric == REWARD, False
        self.episodes, self.extras = EpisodeStats(stats_avg), ExtraStats(stats_avg)
        self.last: TrainStats | None = None
        self.lag = LagStats()
        self._times: Row = dict.fromkeys(f"perf/{name}" for name in _TIMES)

    def missing_metric(self) -> str | None:
        """A warning, once, if none of the first stats_avg episodes reported save_best_metric.

        Only at the second call after them: observers, who may report it, get an episode later than it is counted.
        """
        metric = self._best_metric
        if self._metric_is_known or self.episodes.episodes < self._stats_avg:
            return None
        if self.has_metric or not self._metric_is_due:
            self._metric_is_known, self._metric_is_due = self.has_metric, True
            return None
        self._metric_is_known = True
        if metric == TRUE_OBJECTIVE:
            self._best_metric = REWARD  # permanently: values of two metrics cannot be compared
            consequence = "the best policy is the one with the highest return"
        else:
            consequence = "no best policy is saved until one does"
        return (
            f"save_best_metric={metric}: none of the first {self.episodes.episodes} episodes reported it "
            f"(env reports: {', '.join([f'{REWARD} (the return)', *self.extras.names])}; eval_return is the return of "
            f"evaluations); {consequence}"
        )

    def equal_returns(self) -> str | None:
        """A warning, once, if the return is 0 for every policy that plays all agents of an env."""
        if not self._plays_itself or self._best_metric != REWARD or (team := self.extras.window("team_return")) is None:
            return None
        each = [window.values for name, window in self.extras.windows().items() if name.startswith("return/")]
        if not sum_to_zero(team.values, each):
            return None
        self._plays_itself = False  # it is said
        return (
            f"save_best_metric={REWARD}: the returns of all agents sum to 0 in each episode, and one policy plays all "
            "of them: no policy is better than another by that, neither for the best checkpoint nor for a population; "
            "python -m sfactory.match compares policies"
        )

    def add_learning(self, report: TrainStats | LearnerTimes) -> None:
        """Add a learner's report on its updates, or on its times: NaN for work not done since the last report."""
        if isinstance(report, TrainStats):
            self.last = report
            self.lag.add(report.lag, report.updates)
        else:
            new = {f"perf/{name}": getattr(report, name) for name in _TIMES}
            self._times |= {name: value for name, value in new.items() if not math.isnan(value)}

    @property
    def has_metric(self) -> bool:
        """Whether an episode has reported save_best_metric."""
        return self.extras.window(self._best_metric) is not None

    @property
    def num_episodes(self) -> int:
        """Episodes of all sessions."""
        return self._earlier.episodes + self.episodes.episodes

    @property
    def best(self) -> Best:
        """The best mean return of all sessions."""
        return Best.of(self._earlier.best_return, [self.episodes])

    @property
    def true_objective(self) -> Window:
        """The env's own objective, or the return if the env reports none."""
        return self.extras.window(TRUE_OBJECTIVE) or self.episodes.returns

    def best_metric_mean(self) -> float | None:
        """Mean of save_best_metric over its last stats_avg values; None until there are that many."""
        metric = self._best_metric
        window = self.episodes.returns if metric == REWARD else self.extras.window(metric)
        return None if window is None else window.full_mean

    def full_mean(self, name: str) -> float | None:
        """Mean of ``reward``, ``length`` or an extra statistic over its last stats_avg values; None until then."""
        # The true objective is only what envs report: the return is not comparable with it.
        windows = {REWARD: self.episodes.returns, LENGTH: self.episodes.lengths}
        window = windows.get(name) or self.extras.window(name)
        return None if window is None else window.full_mean

    @property
    def means(self) -> dict[str, float | None]:
        """Means for summary.json; if no episode has ended in this session, those of the last one."""
        now = {
            "episode_return_mean": self.episodes.returns.mean,
            "episode_length_mean": self.episodes.lengths.mean,
            "true_objective_mean": self.true_objective.mean,
        }
        return now if self.episodes.episodes else {name: self._earlier.entry.get(name) for name in now}

    def summary(self, env_steps: int) -> dict[str, float | None]:
        """One policy's entry in summary.json. env_steps: how many it has been trained on."""
        counts: dict[str, float | None] = {"env_steps": env_steps, "episodes": self.num_episodes}
        means = {name: self.means[name] for name in ("episode_return_mean", "true_objective_mean")}
        return counts | means | self.best.entry()

    def scalars(self) -> Row:
        """Scalars of episodes and updates."""
        row: Row = {"train/episodes": self.num_episodes}
        row |= window_scalars("train/episode_return", self.episodes.returns)
        row |= window_scalars("train/true_objective", self.true_objective)
        row |= window_scalars("train/episode_length", self.episodes.lengths)
        for name, window in self.extras.windows().items():
            row |= window_scalars(f"train/extra/{name}", window)
        row["train/best_episode_return_mean"] = self.best.mean
        return row | train_scalars(self.last) | self._times


def plays_itself(config: Config) -> bool:
    """Whether one policy plays all agents of an env in every episode."""
    population = config.population
    alone = population.num_policies == 1 or choose_mapping(population, 1, agents=2) in ("split", "env")
    return alone and not population.opponent_pool


def metric_warnings(together: PolicyStats, each: Sequence[PolicyStats], learning: Collection[int]) -> list[str]:
    """New warnings: ``equal_returns``, and ``missing_metric`` of all policies ``together``, or, if another reports it,
    of each one that learns."""
    of_all, *texts = [stats.missing_metric() for stats in (together, *each)]
    if of_all is not None:
        return [of_all]
    named = {policy: texts[policy] for policy in learning if together.has_metric}
    equal = together.equal_returns()
    missing = [f"policy {policy}: {text}" for policy, text in named.items() if text is not None]
    return missing if equal is None else [*missing, equal]
