"""Room: what children report, gathered. In: messages to main, status rows. Out: progress, rows, the summary.

A thread of its own reads the ring, so that the thread that supervises never waits for a queue.
"""

from __future__ import annotations

import threading

from sfactory.clock import BLOCK_S, now
from sfactory.config.schema import Config
from sfactory.messages import EpisodesDone, ToMain, TrainStats
from sfactory.run.console import Progress
from sfactory.run.metrics import EpisodeStats, Throughput
from sfactory.run.summary import PolicyLag, Result, Summary
from sfactory.shared.channel import Channel
from sfactory.shared.status import StatusBoard

_LOSSES = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm", "value_mean", "learning_rate")


class Reports:
    """Statistics of a run as they come in. All methods may be called while the reading thread works."""

    def __init__(
        self,
        config: Config,
        inbox: Channel[ToMain],
        status: StatusBoard,
        earlier_best: float | None = None,
        earlier_seconds: float = 0.0,
        earlier_episodes: int = 0,
    ) -> None:
        """``earlier_...``: best mean return, training time and episodes of the sessions before."""
        self._earlier_episodes = earlier_episodes
        self._config, self._inbox, self._status = config, inbox, status
        self._earlier_seconds = earlier_seconds
        self._earlier_best = earlier_best
        self.episodes = EpisodeStats(config.report.stats_avg)
        self._last: TrainStats | None = None
        self._lag = _LagOfSession()
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._trained, self._sampled = Throughput(), Throughput()
        self._thread = threading.Thread(target=self._read, name="reports", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading, after a last look."""
        self._leaving.set()
        if self._thread.is_alive():  # not so if starting the children failed
            self._thread.join(4 * BLOCK_S)

    def sample(self) -> None:
        """Take the counters of all processes into the rates. Start-up is not part of any rate."""
        if self.sampled_env_steps:
            self._sampled.add(now(), self.sampled_env_steps)
        if self.train_seconds > self._earlier_seconds:
            self._trained.add(now(), self.trained_env_steps)

    @property
    def sampled_env_steps(self) -> int:
        """Valid env steps that actors have taken in this session."""
        return int(self._status.total("env_steps", "sf-actor"))

    @property
    def trained_env_steps(self) -> int:
        """Env steps learned from, earlier sessions included."""
        return int(self._status.total("env_steps", "sf-learner"))

    @property
    def saved_env_steps(self) -> int:
        """Env steps of the latest checkpoint, where a resumed run goes on."""
        return int(self._status.total("saved_env_steps", "sf-learner"))

    @property
    def updates(self) -> int:
        """Minibatch updates, earlier sessions included."""
        return int(self._status.total("updates", "sf-learner"))

    @property
    def train_seconds(self) -> float:
        """Seconds of training, start-up excluded, earlier sessions included."""
        return max(self._status.values("train_seconds", "sf-learner"))

    def window_mean(self) -> float | None:
        """The mean return over the last stats_avg episodes, once there are as many."""
        with self._lock:
            full = self.episodes.episodes >= self._config.report.stats_avg
            return self.episodes.return_mean if full else None

    def progress(self) -> Progress:
        """Where training stands."""
        with self._lock:
            last, episodes = self._last, self.episodes
            return Progress(
                env_steps=self.trained_env_steps,
                train_seconds=self.train_seconds,
                updates=self.updates,
                fps_10s=self._trained.rate(10.0),
                fps_60s=self._trained.rate(60.0),
                sample_fps=self._sampled.rate(10.0),
                return_mean=episodes.return_mean,
                best_return_mean=self._best_so_far(),
                length_mean=episodes.length_mean,
                lag=_lag(last),
                losses={name: getattr(last, name) for name in _LOSSES} if last else {},
            )

    def scalars(self) -> dict[str, float | None]:
        """A row for metrics.jsonl and TensorBoard; None where there is no number yet."""
        progress, episodes = self.progress(), self.episodes
        row: dict[str, float | None] = {
            "train/episode_return_mean": progress.return_mean,
            "train/best_episode_return_mean": progress.best_return_mean,
            "train/episode_return_min": episodes.return_min,
            "train/episode_return_max": episodes.return_max,
            "train/episode_length_mean": progress.length_mean,
            "train/episodes": self._earlier_episodes + episodes.episodes,
            "perf/fps_10s": progress.fps_10s,
            "perf/fps_60s": progress.fps_60s,
            "perf/sample_fps": progress.sample_fps,
            "perf/train_seconds": progress.train_seconds,
            "perf/updates": progress.updates,
            "policy_lag/min": progress.lag.min,
            "policy_lag/mean": progress.lag.mean,
            "policy_lag/max": progress.lag.max,
        }
        return row | {f"train/{name}": value for name, value in progress.losses.items()}

    def summary(self, status: Result) -> Summary:
        """The result of the run so far."""
        progress = self.progress()
        seconds = progress.train_seconds
        return Summary(
            status=status,
            env_steps=progress.env_steps,
            agent_steps=progress.env_steps,
            frames=progress.env_steps * self._config.sampling.env_frameskip,
            train_seconds=seconds,
            fps=progress.env_steps / seconds if seconds else None,
            sample_fps=self._sampled.overall,
            episodes=self._earlier_episodes + self.episodes.episodes,
            episode_return_mean=progress.return_mean,
            best_episode_return_mean=progress.best_return_mean,
            episode_length_mean=progress.length_mean,
            policy_lag=self._lag.value(),
            updates=progress.updates,
        )

    def _best_so_far(self) -> float | None:
        known = [best for best in (self._earlier_best, self.episodes.best_return_mean) if best is not None]
        return max(known, default=None)

    def _read(self) -> None:
        while not self._leaving.is_set():
            self._take(BLOCK_S)
        self._take(0)

    def _take(self, timeout: float) -> None:
        for message in self._inbox.get(timeout):
            with self._lock:
                if isinstance(message, EpisodesDone):
                    self.episodes.add(message.returns, message.lengths)
                else:
                    self._last = message
                    self._lag.add(message)


class _LagOfSession:
    """Minimum, mean and maximum policy lag over all updates of this session."""

    def __init__(self) -> None:
        self._minimum, self._maximum = float("inf"), 0.0
        self._total, self._updates = 0.0, 0.0

    def add(self, stats: TrainStats) -> None:
        self._minimum = min(self._minimum, stats.lag_min)
        self._maximum = max(self._maximum, stats.lag_max)
        self._total += stats.lag_mean * stats.updates
        self._updates += stats.updates

    def value(self) -> PolicyLag:
        if not self._updates:
            return PolicyLag()
        return PolicyLag(self._minimum, self._total / self._updates, self._maximum)


def _lag(stats: TrainStats | None) -> PolicyLag:
    return PolicyLag() if stats is None else PolicyLag(stats.lag_min, stats.lag_mean, stats.lag_max)
