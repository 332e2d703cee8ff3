"""What children report is gathered into progress, rows and the summary, with nothing counted twice."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest

from sfactory.config.schema import Config, ReportConfig, SamplingConfig
from sfactory.messages import MAX_REPORT_BYTES, TO_MAIN, EpisodesDone, ToMain, TrainStats
from sfactory.run import reports as reports_module
from sfactory.run.reports import Reports
from sfactory.shared.channel import Channel
from sfactory.shared.status import StatusBoard
from tests.support.processes import eventually

CONFIG = Config(report=ReportConfig(stats_avg=4), sampling=SamplingConfig(env_frameskip=4))
STATS = TrainStats(
    policy=0,
    updates=2.0,
    policy_loss=0.1,
    value_loss=0.2,
    entropy=0.3,
    kl=0.4,
    clip_fraction=0.5,
    grad_norm=0.6,
    value_mean=0.7,
    learning_rate=0.8,
    valid_fraction=0.9,
    lag_min=1.0,
    lag_mean=2.0,
    lag_max=3.0,
)


class Desk:
    """Reports with the ends of what feeds it."""

    def __init__(self) -> None:
        self.inbox: Channel[ToMain] = Channel("sf-main", TO_MAIN, 64, MAX_REPORT_BYTES)
        self.status = StatusBoard(["sf-learner-0", "sf-actor-0", "sf-actor-1"])
        self.reports = Reports(CONFIG, self.inbox, self.status)

    def episodes(self, *returns: float, length: int = 10) -> None:
        self.inbox.put(EpisodesDone(0, np.array(returns, np.float64), np.full(len(returns), length)))

    def read_all(self) -> None:
        """Start the reading thread and stop it, which reads what is there."""
        self.reports.start()
        self.reports.stop()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.reports.stop()


def test_before_anything_happened_there_are_no_numbers(desk: Desk) -> None:
    summary = desk.reports.summary("interrupted")

    assert (summary.env_steps, summary.episodes, summary.updates, summary.train_seconds) == (0, 0, 0, 0.0)
    assert (summary.fps, summary.sample_fps, summary.episode_return_mean, summary.policy_lag.max) == (None,) * 4
    assert desk.reports.window_mean() is None
    assert json.loads(summary.to_json())["fps"] is None


def test_stopping_what_was_never_started_does_no_harm(desk: Desk) -> None:
    desk.reports.stop()


def test_everything_sent_before_the_stop_is_counted(desk: Desk) -> None:
    for number in range(60):
        desk.episodes(number, number)

    desk.read_all()

    assert desk.reports.episodes.episodes == 120
    assert desk.reports.progress().return_mean == (58 + 58 + 59 + 59) / 4


def test_episodes_are_read_while_the_run_goes_on(desk: Desk) -> None:
    desk.reports.start()

    desk.episodes(1.0, 3.0, length=7)

    assert eventually(lambda: desk.reports.episodes.episodes == 2, within_s=30)
    progress = desk.reports.progress()
    assert (progress.return_mean, progress.length_mean) == (2.0, 7.0)


def test_the_mean_that_a_best_policy_is_judged_by_needs_a_full_window(desk: Desk) -> None:
    desk.episodes(100.0, 100.0, 100.0)
    desk.reports.start()
    assert eventually(lambda: desk.reports.episodes.episodes == 3, within_s=30)
    assert desk.reports.window_mean() is None

    desk.episodes(0.0, 0.0)

    assert eventually(lambda: desk.reports.window_mean() is not None, within_s=30)
    assert desk.reports.window_mean() == 50.0


def test_trained_and_sampled_steps_are_counted_apart(desk: Desk) -> None:
    desk.status.row("sf-learner-0").set("env_steps", 100)
    desk.status.row("sf-learner-0").set("updates", 7)
    desk.status.row("sf-actor-0").set("env_steps", 60)
    desk.status.row("sf-actor-1").set("env_steps", 70)

    reports = desk.reports

    assert (reports.trained_env_steps, reports.sampled_env_steps, reports.updates) == (100, 130, 7)


def test_rates_begin_with_the_first_step_and_not_with_the_start(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, learner = desk.status.row("sf-actor-0"), desk.status.row("sf-learner-0")

    # (time, sampled, trained, seconds of training): nothing happens for the first 50 s.
    for at, sampled, trained, seconds in ((0, 0, 0, 0), (50, 10, 0, 0), (52, 210, 0, 1), (54, 410, 100, 3)):
        monkeypatch.setattr(reports_module, "now", lambda at=at: float(at))
        actor.set("env_steps", sampled)
        learner.set("env_steps", trained)
        learner.set("train_seconds", seconds)
        desk.reports.sample()

    progress = desk.reports.progress()
    assert progress.sample_fps == 100.0
    assert (progress.fps_10s, progress.fps_60s) == (50.0, 50.0)


def test_the_last_statistics_of_the_learner_are_shown(desk: Desk) -> None:
    desk.inbox.put(STATS._replace(policy_loss=9.0, lag_max=9.0))
    desk.inbox.put(STATS)

    desk.read_all()

    progress, row = desk.reports.progress(), desk.reports.scalars()
    assert (progress.lag.min, progress.lag.mean, progress.lag.max) == (1.0, 2.0, 3.0)
    assert progress.losses["policy_loss"] == row["train/policy_loss"] == 0.1
    assert row["policy_lag/max"] == 3.0
    assert set(progress.losses) >= {"value_loss", "entropy", "kl", "grad_norm", "learning_rate"}


def test_the_summary_tells_frames_and_training_speed(desk: Desk) -> None:
    learner = desk.status.row("sf-learner-0")
    learner.set("env_steps", 5000)
    learner.set("updates", 20)
    learner.set("train_seconds", 10.0)
    desk.episodes(1.0, 2.0, 3.0, 4.0, 5.0)
    desk.inbox.put(STATS)
    desk.read_all()

    summary = desk.reports.summary("done")

    assert (summary.env_steps, summary.agent_steps, summary.frames, summary.updates) == (5000, 5000, 20_000, 20)
    assert (summary.train_seconds, summary.fps) == (10.0, 500.0)
    assert (summary.episodes, summary.episode_return_mean, summary.best_episode_return_mean) == (5, 3.5, 3.5)
    assert summary.episode_length_mean == 10.0
    assert summary.policy_lag.mean == 2.0


def test_an_episode_without_a_finite_return_enters_no_mean(desk: Desk) -> None:
    desk.episodes(1.0, math.nan, 3.0)

    desk.read_all()

    assert desk.reports.episodes.episodes == 3
    assert desk.reports.progress().return_mean == 2.0


def test_the_policy_lag_of_the_summary_covers_the_whole_session(desk: Desk) -> None:
    desk.inbox.put(STATS._replace(updates=10.0, lag_min=5.0, lag_mean=6.0, lag_max=40.0))
    desk.inbox.put(STATS._replace(updates=1.0, lag_min=0.0, lag_mean=28.0, lag_max=30.0))
    desk.inbox.put(STATS._replace(updates=5.0, lag_min=1.0, lag_mean=2.0, lag_max=3.0))

    desk.read_all()

    lag = desk.reports.summary("done").policy_lag
    # The mean is over updates, not over reports; progress shows the last report alone.
    assert (lag.min, lag.mean, lag.max) == (0.0, (60.0 + 28.0 + 10.0) / 16.0, 40.0)
    assert desk.reports.progress().lag.max == 3.0


def test_a_session_without_an_update_has_no_policy_lag(desk: Desk) -> None:
    desk.read_all()

    lag = desk.reports.summary("done").policy_lag
    assert (lag.min, lag.mean, lag.max) == (None, None, None)
