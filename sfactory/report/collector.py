"""Collects the reports of child processes and computes progress, metrics rows and the run's summary.

A thread reads the queues, so that supervision never waits for them. A serial run calls ``poll`` instead.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from sfactory.clock import BLOCK_S, now
from sfactory.config.population_rules import agents_by_pattern, learning_policies
from sfactory.config.schema import Config, PopulationConfig
from sfactory.experiment.resume import Resumed
from sfactory.experiment.summary import Result, Summary
from sfactory.layout import ACTORS, LEARNERS, actor_name, learner_name, num_evaluators
from sfactory.messages import (
    MAX_STAT_NAMES,
    TRAIN_STATISTICS,
    TRUE_OBJECTIVE,
    EpisodeEnd,
    EpisodeExtras,
    EpisodesDone,
    EvaluationPart,
    ExtrasRefused,
    PolicyLag,
    ToMain,
)
from sfactory.pbt.ranking import REWARD
from sfactory.report.episode_stats import Best, EpisodeStats, Throughput
from sfactory.report.eval_results import EvaluationReports
from sfactory.report.policy_stats import PolicyStats, metric_warnings, plays_itself
from sfactory.report.progress import Progress
from sfactory.report.scalars import Row, counter_scalars, env_faults, memory_of_run, sb3_scalars
from sfactory.shared.channel import Channel
from sfactory.shared.status import StatusBoard

_log = logging.getLogger(__name__)

_REFUSED = (
    "%s: ignored an extra episode statistic, and will ignore others like it: %s; check the info that the environment "
    "returns at the end of an episode"
)
_LOOK_S = 0.1  # the thread ends so soon after the processes of a run, which have nothing more to report
_MOST_EPISODES = 100_000  # that wait for observers; more come only where these need longer than the episodes


class ReportCollector:
    """Statistics of a run as they arrive; counts and rates named ``trained`` include earlier sessions of the run."""

    def __init__(
        self,
        config: Config,
        from_actors: Channel[ToMain],
        from_learners: Sequence[Channel[ToMain]],
        status: StatusBoard,
        resumed: Resumed | None = None,
    ) -> None:
        """``resumed``: the state of the run at the end of its last session."""
        self._resumed = resumed or Resumed()
        stats_avg, best_metric = config.report.stats_avg, config.checkpoint.episode_metric
        policies = config.population.num_policies
        self._all = PolicyStats(stats_avg, best_metric, self._resumed.together, plays_itself(config))
        of_each = map(self._resumed.of, range(policies))
        self._by_policy = [PolicyStats(stats_avg, best_metric, each) for each in of_each] if policies > 1 else []
        self._each = self._by_policy or [self._all]  # with one policy both are the same
        self._config, self._status, self._from_actors, self._from_learners = config, status, from_actors, from_learners
        self.evaluations = EvaluationReports(num_evaluators(config.evaluation))
        self.ended: deque[EpisodeEnd] = deque(maxlen=_MOST_EPISODES)  # for observers; the reporter takes them
        self._lock, self._stopping, self._actors_warned = threading.Lock(), threading.Event(), set[int]()
        self.reading_since = 0.0  # since when the thread has been reading the actors' queue; 0 if it is not reading
        self._trained, self._sampled = Throughput(), Throughput()
        self._learning = {policy: Throughput() for policy in learning_policies(config)} if policies > 1 else {}
        self._thread = threading.Thread(target=self._read, name="reports", daemon=True)

    def start(self) -> None:
        """Start the reading thread."""
        self._thread.start()

    def poll(self) -> None:
        """Read all pending messages without waiting; only for runs without the reading thread."""
        while self._read_messages(0):
            pass

    def stop(self) -> None:
        """Stop the reading thread after it has read all pending messages; it may not have been started."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(4 * BLOCK_S)

    def add_extra(self, name: str, policy: int, number: float) -> bool:
        """Add an extra statistic of a policy's episode; False if that is one name too many."""
        with self._lock:
            stats = [self._all, *self._by_policy[policy : policy + 1]]
            return all(each.extras.add(name, [number]) for each in stats)

    def sample(self) -> None:
        """Update all rates from the counters of the processes. Start-up is not part of any rate."""
        if self.sampled_env_steps:
            self._sampled.add(now(), self.sampled_env_steps)
        self.sample_trained()

    def sample_trained(self) -> None:
        """Update the training rate alone."""
        if self.train_seconds > self._resumed.train_seconds:
            self._trained.add(now(), self.trained_env_steps)
            for policy, throughput in self._learning.items():
                throughput.add(now(), self.env_steps_of(policy))

    @property
    def sampled_env_steps(self) -> int:
        """Valid env steps taken by actors in this session."""
        return int(self._status.total("env_steps", ACTORS))

    @property
    def trained_env_steps(self) -> int:
        """Env steps trained on."""
        return self._trained_count("run_env_steps", self._resumed.env_steps)

    @property
    def saved_env_steps(self) -> int:
        """Env steps of the latest checkpoint, from which the run can be resumed."""
        return self._trained_count("saved_env_steps", self._resumed.env_steps)

    @property
    def updates(self) -> int:
        """Minibatch updates."""
        return self._trained_count("updates", self._resumed.updates)

    def _trained_count(self, name: str, earlier: int) -> int:
        return max(earlier, int(self._status.total(name, LEARNERS)))  # 0 until checkpoints are loaded

    @property
    def train_seconds(self) -> float:
        """Seconds of training, without start-up."""
        return max(self._resumed.train_seconds, *self._status.values("train_seconds", LEARNERS))

    def env_steps_of(self, policy: int) -> int:
        """Env steps that ``policy`` has been trained on."""
        earlier = self._resumed.of(policy).env_steps
        return max(earlier, int(self._status.row(learner_name(policy)).get("env_steps")))

    def objectives(self, name: str) -> dict[int, float | None]:
        """Mean of the episode statistic ``name`` over its last stats_avg values, by policy; None until then."""
        with self._lock:
            return {policy: stats.full_mean(name) for policy, stats in enumerate(self._each)}

    def check_best_metric(self) -> None:
        """Warn, once, if save_best_metric is not reported (returns replace a true objective) or says nothing."""
        with self._lock:
            warnings = metric_warnings(self._all, self._by_policy, self._learning)
        for text in warnings:
            _log.warning("%s", text)

    def best_metric_means(self) -> list[float | None]:
        """Mean of save_best_metric over its last stats_avg values, by policy; None until then."""
        with self._lock:
            return [stats.best_metric_mean() for stats in self._each]

    def episodes_of_policies(self) -> list[int]:
        """Episodes of each policy in all sessions."""
        return [stats.num_episodes for stats in self._each]

    def forget_episodes(self, policy: int) -> None:
        """Start new windows for ``policy``, because it has got other weights; counts and best values stay."""
        with self._lock:
            self._each[policy].episodes.forget_last()
            self._each[policy].extras.forget_last()

    @property
    def extra_names(self) -> list[str]:
        """Names of the extra statistics reported so far, the true objective included."""
        with self._lock:
            return self._all.extras.names

    @property
    def episodes(self) -> EpisodeStats:
        """Episodes of all policies in this session."""
        return self._all.episodes

    def progress(self) -> Progress:
        """The current state of training."""
        with self._lock:
            last, episodes = self._all.last, self._all.episodes
            return Progress(
                env_steps=self.trained_env_steps,
                train_seconds=self.train_seconds,
                updates=self.updates,
                fps_10s=self._trained.rate(10.0),
                fps_60s=self._trained.rate(60.0),
                sample_fps=self._sampled.rate(10.0),
                return_mean=episodes.returns.mean,
                true_objective_mean=self._all.true_objective.mean,
                best_return_mean=_best(self._each, self._resumed.best_return).mean,
                length_mean=episodes.lengths.mean,
                learning=[(self.env_steps_of(policy), speed.rate(60.0)) for policy, speed in self._learning.items()],
                returns=[stats.episodes.returns.mean for stats in self._by_policy],
                lag=PolicyLag() if last is None else last.lag,
                losses={name: getattr(last, name) for name in TRAIN_STATISTICS} if last else {},
                env_faults=env_faults(self._status),
            )

    def scalars(self) -> Row:
        """A row for metrics.jsonl and TensorBoard; values that are not known yet are None."""
        with self._lock:
            row = self._all.scalars()
            for policy, stats in enumerate(self._by_policy):
                own = stats.scalars() | {"perf/trained_env_steps": self.env_steps_of(policy)}
                row |= {f"policy_{policy}/{name}": value for name, value in own.items()}
            row["train/best_episode_return_mean"] = _best(self._each, self._resumed.best_return).mean
        row |= {
            "perf/train_seconds": self.train_seconds,
            "perf/updates": self.updates,
            "perf/sampled_env_steps": self.sampled_env_steps,
            "perf/trained_env_steps": self.trained_env_steps,
            "perf/fps_10s": self._trained.rate(10.0),
            "perf/fps_60s": self._trained.rate(60.0),
            "perf/fps_300s": self._trained.rate(300.0),
            "perf/sample_fps": self._sampled.rate(10.0),
            "perf/peak_train_fps": self._trained.peak,
            "perf/peak_sample_fps": self._sampled.peak,
            **counter_scalars(self._status),
        }
        row |= sb3_scalars(row, self._trained, self.train_seconds - self._resumed.train_seconds)
        return row | memory_of_run(self._status)

    def summary(self, status: Result) -> Summary:
        """The result of the run so far. If no episode ended in this session, those of the last session count."""
        progress, earlier, means = self.progress(), self._resumed.summary, self._all.means
        with self._lock:
            extras = {name: mean for name, one in self._all.extras.windows().items() if (mean := one.mean) is not None}
            policies = [stats.summary(self.env_steps_of(policy)) for policy, stats in enumerate(self._by_policy)]
            best = _best(self._each, self._resumed.best_return).entry()
        metric = TRUE_OBJECTIVE if TRUE_OBJECTIVE in self.extra_names else REWARD
        evaluation, earlier_evaluation = self.evaluations.last, None if earlier is None else earlier.evaluation
        return Summary(
            status=status,
            env_steps=progress.env_steps,
            agent_steps=self._trained_count("agent_steps", self._resumed.agent_steps),
            frames=progress.env_steps * self._config.frames_per_step,
            train_seconds=progress.train_seconds,
            fps=progress.env_steps / progress.train_seconds if progress.train_seconds else None,
            sample_fps=self._sampled.overall,
            episodes=self._all.num_episodes,
            episode_return_mean=means["episode_return_mean"],
            **best,
            episode_length_mean=means["episode_length_mean"],
            policy_lag=self._all.lag.value(),
            updates=progress.updates,
            true_objective_mean=means["true_objective_mean"],
            episode_extra_stats=extras if self._all.episodes.episodes or not earlier else earlier.episode_extra_stats,
            evaluation=earlier_evaluation if evaluation is None else asdict(evaluation),
            policies=policies,
            best_policy=_best_policy(self._config.population, self.objectives(metric), earlier),
        )

    def _read(self) -> None:
        while not self._stopping.is_set():
            self._read_messages(_LOOK_S)
        self.poll()

    def _read_messages(self, timeout: float) -> bool:
        """Read what arrives within ``timeout`` seconds; False if nothing did."""
        self.reading_since = now()
        messages = list(self._from_actors.get(timeout))
        self.reading_since = 0.0
        messages += [message for channel in self._from_learners for message in channel.get(0)]
        for message in messages:
            with self._lock:
                refused = self._add(message)
            if refused is not None and refused.actor not in self._actors_warned:
                self._actors_warned.add(refused.actor)
                _log.warning(_REFUSED, actor_name(refused.actor), refused.reason)
        return bool(messages)

    def _add(self, message: ToMain) -> ExtrasRefused | None:
        """Add a message to the statistics; returns the refusal of an extra statistic."""
        if isinstance(message, ExtrasRefused):
            return message
        if isinstance(message, EvaluationPart):
            self.evaluations.add(message)
            return None
        belongs_to = [self._all, *self._by_policy[message.policy : message.policy + 1]]
        match message:
            case EpisodeEnd():
                self.ended.append(message)
            case EpisodesDone():
                for stats in belongs_to:
                    stats.episodes.add(message.returns, message.lengths)
            case EpisodeExtras(actor, name):
                added = [stats.extras.add(name, message.values) for stats in belongs_to]
                if not all(added):
                    return ExtrasRefused(actor, f"{name!r} is one name too many: at most {MAX_STAT_NAMES}")
            case _:
                for stats in belongs_to:
                    stats.add_learning(message)
        return None


def _best_policy(
    population: PopulationConfig, objectives: Mapping[int, float | None], earlier: Summary | None
) -> int | None:
    """Of several policies the one with the highest full mean of true objectives, or of returns if envs report none.

    None if they play agents of their own: their returns do not say which one is better.
    """
    if population.num_policies == 1 or agents_by_pattern(population.policy_mapping):
        return None
    means = {policy: mean for policy, mean in objectives.items() if mean is not None}
    return max(means, key=lambda policy: means[policy], default=earlier.best_policy if earlier else None)


def _best(policies: Sequence[PolicyStats], earlier: float | None) -> Best:
    """The best that any single policy has reached in any session, ``earlier`` ones included."""
    return Best.of(earlier, [stats.episodes for stats in policies])
