"""Room: what children report, gathered. In: messages to main, status rows. Out: progress, rows, the summary.

A thread of its own reads the rings, so that the thread that supervises never waits for a queue. A run without
other processes starts no thread and calls ``poll``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import assert_never

from sfactory.clock import BLOCK_S, now
from sfactory.config.schema import Config
from sfactory.experiment.resume import Resumed
from sfactory.experiment.summary import Result, Summary
from sfactory.layout import ACTORS, LEARNERS, actor_name, learner_name, num_evaluators
from sfactory.messages import (
    MAX_STAT_NAMES,
    TRAIN_STATISTICS,
    TRUE_OBJECTIVE,
    EpisodeExtras,
    EpisodesDone,
    EvaluationPart,
    ExtrasRefused,
    LearnerTimes,
    PolicyLag,
    ToMain,
    TrainStats,
)
from sfactory.pbt.ranking import REWARD
from sfactory.report.console import Progress
from sfactory.report.episode_stats import EpisodeStats, Throughput
from sfactory.report.eval_results import EvaluationReports
from sfactory.report.policy_stats import PolicyStats
from sfactory.report.scalars import Row, counter_scalars, env_faults, memory_scalars, sb3_scalars, speed_scalars
from sfactory.shared.channel import Channel
from sfactory.shared.status import StatusBoard

_log = logging.getLogger(__name__)


class ReportCollector:
    """Statistics of a run as they come in. All methods may be called while the reading thread works."""

    def __init__(
        self,
        config: Config,
        from_actors: Channel[ToMain],
        from_learners: Sequence[Channel[ToMain]],
        status: StatusBoard,
        resumed: Resumed | None = None,
    ) -> None:
        """``resumed``: where the sessions before have brought the run."""
        self._resumed = resumed or Resumed()
        earlier = self._resumed.summary
        of_episodes = config.report.stats_avg, config.checkpoint.save_best_metric
        self._all = PolicyStats(*of_episodes, earlier.episodes if earlier else 0, self._resumed.best_return)
        # With one policy what is known of all is what is known of it.
        policies = config.population.num_policies
        self._by_policy = [PolicyStats(*of_episodes) for _ in range(policies)] if policies > 1 else []
        self._each = self._by_policy or [self._all]
        self._config, self._status = config, status
        self._from_actors, self._from_learners = from_actors, from_learners
        self.evaluations = EvaluationReports(num_evaluators(config.evaluation))
        self._refusing: set[int] = set()  # actors that were warned about
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._reading_since = 0.0
        self._trained, self._sampled = Throughput(), Throughput()
        self._thread = threading.Thread(target=self._read, name="reports", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def poll(self) -> None:
        """Take in what is there, without waiting; only where the reading thread does not run."""
        while self._take(0):
            pass

    def stop(self) -> None:
        """Stop reading, after a last look."""
        self._leaving.set()
        if self._thread.is_alive():  # not so if starting the children failed
            self._thread.join(4 * BLOCK_S)

    def reading_since(self) -> float:
        """Since when the ring of the actors is being read; 0 if it is not."""
        return self._reading_since

    def sample(self) -> None:
        """Take the counters of all processes into the rates. Start-up is not part of any rate."""
        if self.sampled_env_steps:
            self._sampled.add(now(), self.sampled_env_steps)
        self.sample_trained()

    def sample_trained(self) -> None:
        """Take the counters of learners alone into the rates."""
        if self.train_seconds > self._resumed.train_seconds:
            self._trained.add(now(), self.trained_env_steps)

    @property
    def sampled_env_steps(self) -> int:
        """Valid env steps that actors have taken in this session."""
        return int(self._status.total("env_steps", ACTORS))

    @property
    def trained_env_steps(self) -> int:
        """Env steps learned from, earlier sessions included."""
        # Until the learner has loaded its checkpoint it knows of nothing.
        return max(self._resumed.env_steps, int(self._status.total("run_env_steps", LEARNERS)))

    @property
    def trained_agent_steps(self) -> int:
        """Agents' steps learned from, earlier sessions included."""
        return max(self._resumed.agent_steps, int(self._status.total("agent_steps", LEARNERS)))

    @property
    def saved_env_steps(self) -> int:
        """Env steps of the latest checkpoint, where a resumed run goes on."""
        return max(self._resumed.env_steps, int(self._status.total("saved_env_steps", LEARNERS)))

    @property
    def updates(self) -> int:
        """Minibatch updates, earlier sessions included."""
        return max(self._resumed.updates, int(self._status.total("updates", LEARNERS)))

    @property
    def train_seconds(self) -> float:
        """Seconds of training, start-up excluded, earlier sessions included."""
        return max(self._resumed.train_seconds, *self._status.values("train_seconds", LEARNERS))

    def objectives(self, name: str) -> dict[int, float | None]:
        """By policy: the mean of the episode statistic ``name`` over its last stats_avg values, once it has as many."""
        with self._lock:
            return {policy: known.full_mean(name) for policy, known in enumerate(self._by_policy)}

    def forget_episodes(self, policy: int) -> None:
        """``policy`` plays with other weights from now on: what it has played with those before tells nothing."""
        with self._lock:
            self._by_policy[policy].forget_episodes()

    def env_steps_of(self, policy: int) -> int:
        """Env steps that ``policy`` has learned from, earlier sessions included."""
        steps = self._resumed.steps_of_policies
        return max(steps[policy] if steps else 0, int(self._status.row(learner_name(policy)).get("env_steps")))

    @property
    def extra_names(self) -> list[str]:
        """The extra statistics that episodes have given, with the true objective's."""
        with self._lock:
            return self._all.extras.names

    @property
    def episodes(self) -> EpisodeStats:
        """Of all policies in this session."""
        return self._all.episodes

    def window_means(self) -> list[float | None]:
        """By policy: the mean of save_best_metric over its last stats_avg values, once there are as many."""
        with self._lock:
            return [policy.window_mean() for policy in self._by_policy or [self._all]]

    def progress(self) -> Progress:
        """Where training stands."""
        with self._lock:
            known, last = self._all, self._all.last
            return Progress(
                env_steps=self.trained_env_steps,
                train_seconds=self.train_seconds,
                updates=self.updates,
                fps_10s=self._trained.rate(10.0),
                fps_60s=self._trained.rate(60.0),
                sample_fps=self._sampled.rate(10.0),
                return_mean=known.episodes.returns.mean,
                true_objective_mean=known.true_objective.mean,
                best_return_mean=_best_return_mean(self._each, self._resumed.best_return),
                length_mean=known.episodes.lengths.mean,
                returns=[policy.episodes.returns.mean for policy in self._by_policy],
                lag=PolicyLag() if last is None else last.lag,
                losses={name: getattr(last, name) for name in TRAIN_STATISTICS} if last else {},
                env_faults=env_faults(self._status),
            )

    def scalars(self) -> Row:
        """A row for metrics.jsonl and TensorBoard; None where there is no number yet. Looks at all processes."""
        with self._lock:
            row = self._all.scalars()
            for policy, known in enumerate(self._by_policy):
                row |= known.scalars_of(policy, self.env_steps_of(policy))
            row["train/best_episode_return_mean"] = _best_return_mean(self._each, self._resumed.best_return)
        row |= {
            "perf/train_seconds": self.train_seconds,
            "perf/updates": self.updates,
            "perf/sampled_env_steps": self.sampled_env_steps,
            "perf/trained_env_steps": self.trained_env_steps,
        }
        row |= speed_scalars(self._trained, self._sampled) | counter_scalars(self._status)
        row |= sb3_scalars(row, self._trained, self.train_seconds - self._resumed.train_seconds)
        return row | memory_scalars(self._pids())

    def _pids(self) -> dict[str, int]:
        pids = zip(self._status.names, self._status.values("pid", ""), strict=True)
        return {"sf-main": os.getpid()} | {name: int(pid) for name, pid in pids}

    def summary(self, status: Result) -> Summary:
        """The result of the run so far."""
        progress, earlier = self.progress(), self._resumed.summary
        if not self.episodes.episodes and earlier is not None:
            progress = _with_episodes_of(earlier, progress)
        with self._lock:
            extras = {name: window.mean for name, window in self._all.extras.windows().items()}
            policies = [known.standing(self.env_steps_of(policy)) for policy, known in enumerate(self._by_policy)]
            best = _best_policy(self._all, self._by_policy, earlier)
        evaluation, earlier_evaluation = self.evaluations.last, None if earlier is None else earlier.evaluation
        return Summary(
            status=status,
            env_steps=progress.env_steps,
            agent_steps=self.trained_agent_steps,
            frames=progress.env_steps * self._config.sampling.env_frameskip,
            train_seconds=progress.train_seconds,
            fps=progress.env_steps / progress.train_seconds if progress.train_seconds else None,
            sample_fps=self._sampled.overall,
            episodes=self._all.num_episodes,
            episode_return_mean=progress.return_mean,
            best_episode_return_mean=progress.best_return_mean,
            episode_length_mean=progress.length_mean,
            policy_lag=self._all.lag.value(),
            updates=progress.updates,
            true_objective_mean=progress.true_objective_mean,
            episode_extra_stats={name: mean for name, mean in extras.items() if mean is not None},
            evaluation=earlier_evaluation if evaluation is None else asdict(evaluation),
            policies=policies,
            best_policy=best,
        )

    def _read(self) -> None:
        while not self._leaving.is_set():
            self._take(BLOCK_S)
        self.poll()

    def _take(self, timeout: float) -> bool:
        """Take in what arrives within ``timeout`` seconds; whether anything did."""
        warnings: list[str] = []
        self._reading_since = now()
        messages = list(self._from_actors.get(timeout))
        self._reading_since = 0.0
        for inbox in self._from_learners:
            messages += inbox.get(0)
        for message in messages:
            with self._lock:
                self._take_in(message, warnings)
        for warning in warnings:
            _log.warning("%s", warning)
        return bool(messages)

    def _take_in(self, message: ToMain, warnings: list[str]) -> None:
        match message:
            case EpisodesDone():
                told = [known.add_episodes(message) for known in self._known_of(message.policy)]
                if told[0] is not None:  # the same would be told of each policy
                    warnings.append(told[0])
            case EpisodeExtras(actor, name):
                taken = [known.add_extras(message) for known in self._known_of(message.policy)]
                if not all(taken):
                    self._refuse(actor, f"{name!r} is one name too many: there may be {MAX_STAT_NAMES}", warnings)
            case ExtrasRefused(actor, reason):
                self._refuse(actor, reason, warnings)
            case TrainStats():
                for known in self._known_of(message.policy):
                    known.add_stats(message)
            case LearnerTimes():
                for known in self._known_of(message.policy):
                    known.add_times(message)
            case EvaluationPart():
                self.evaluations.add(message)
            case _:
                assert_never(message)

    def _known_of(self, policy: int) -> list[PolicyStats]:
        """What a message about ``policy`` enters: that of all policies first."""
        return [self._all, *self._by_policy[policy : policy + 1]]

    def _refuse(self, actor: int, reason: str, warnings: list[str]) -> None:
        if actor not in self._refusing:
            self._refusing.add(actor)
            warnings.append(
                f"{actor_name(actor)}: an extra statistic of an episode is left out, and so will others like it be: "
                f"{reason}; see to the info that the environment gives at the end of an episode"
            )


def _with_episodes_of(earlier: Summary, progress: Progress) -> Progress:
    """No episode ended in this session: what was known of the last ones still is."""
    return replace(
        progress,
        return_mean=earlier.episode_return_mean,
        length_mean=earlier.episode_length_mean,
        true_objective_mean=earlier.true_objective_mean,
    )


def _best_policy(together: PolicyStats, policies: Sequence[PolicyStats], earlier: Summary | None) -> int | None:
    """The number of the policy with the highest mean of stats_avg true objectives, or returns where none are told.

    Until one has had as many episodes in this session it is the one of ``earlier``.
    """
    objective = TRUE_OBJECTIVE if TRUE_OBJECTIVE in together.extras.windows() else REWARD
    means = {number: mean for number, known in enumerate(policies) if (mean := known.full_mean(objective)) is not None}
    before = None if earlier is None else earlier.best_policy
    return max(means, key=lambda number: means[number], default=before)


def _best_return_mean(policies: Sequence[PolicyStats], earlier: float | None) -> float | None:
    """The best that any one policy has come to, in all sessions."""
    bests = [earlier, *(known.best_return_mean for known in policies)]
    return max((best for best in bests if best is not None), default=None)
