"""Reports of child processes become progress, metrics rows and the summary."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sfactory.config.flags import config_of
from sfactory.config.schema import CheckpointConfig, Config, PopulationConfig, ReportConfig, SamplingConfig
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.messages import (
    MAX_REPORT_BYTES,
    MAX_STAT_NAMES,
    TO_MAIN,
    EpisodeExtras,
    EpisodesDone,
    ExtrasRefused,
    LearnerTimes,
    PolicyLag,
    ToMain,
    TrainStats,
)
from sfactory.report import collector as collector_module
from sfactory.report.collector import ReportCollector
from sfactory.report.console import Console
from sfactory.report.reporter import Reporter
from sfactory.shared.channel import Channel
from sfactory.shared.status import StatusBoard
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR, small_layout
from tests.support.processes import eventually

CONFIG = Config(report=ReportConfig(stats_avg=4), sampling=SamplingConfig(env_frameskip=4))
STATS = TrainStats(
    policy=0,
    updates=2.0,
    policy_loss=0.1,
    value_loss=0.2,
    entropy=0.3,
    kl=0.4,
    replay_kl=math.nan,
    clip_fraction=0.5,
    ratio_mean=1.5,
    explained_variance=0.55,
    value_mean=0.7,
    advantage_std=0.75,
    valid_fraction=0.9,
    replayed_fraction=0.0,
    aux_loss=0.65,
    grad_norm=0.6,
    learning_rate=0.8,
    value_learning_rate=0.85,
    exploration_coeff=0.003,
    kl_coeff=0.2,
    lag=PolicyLag(1.0, 2.0, 3.0),
    replay_lag=PolicyLag(4.0, 5.0, 6.0),
)

TIMES = LearnerTimes(
    policy=0, grad_ms=1.5, update_ms=0.5, load_ms=math.nan, load_wait_ms=0.25, dequeue_ms=math.nan, publish_ms=0.125
)


class Source:
    """A collector and everything that feeds it."""

    def __init__(self, save_best_metric: str = "reward", policies: int = 1) -> None:
        config = dataclasses.replace(
            CONFIG,
            checkpoint=CheckpointConfig(save_best_metric=save_best_metric),
            population=PopulationConfig(num_policies=policies),
        )
        self.inbox: Channel[ToMain] = Channel("sf-main", TO_MAIN, 64, MAX_REPORT_BYTES)
        learners = [f"sf-learner-{policy}" for policy in range(policies)]
        self.status = StatusBoard([*learners, "sf-actor-0", "sf-actor-1"])
        self.learner = self.status.row("sf-learner-0")
        self.actors = [self.status.row(f"sf-actor-{actor}") for actor in range(2)]
        self.reports = ReportCollector(config, self.inbox, [], self.status)

    def episodes(self, *returns: float, length: int = 10, policy: int = 0) -> None:
        self.inbox.put(EpisodesDone(0, np.array(returns, np.float64), np.full(len(returns), length), policy=policy))

    def extras(self, name: str, *values: float, actor: int = 0, policy: int = 0) -> None:
        self.inbox.put(EpisodeExtras(actor, name, np.array(values, np.float64), policy=policy))

    def row(self) -> dict[str, float | None]:
        """The scalars after all messages have been read."""
        self.reports.poll()
        return self.reports.scalars()

    def sample(self, monkeypatch: pytest.MonkeyPatch, at: float, sampled: int, trained: int, seconds: float) -> None:
        """Let the counters have these values at this time."""
        monkeypatch.setattr(collector_module, "now", lambda: float(at))
        self.actors[0].set("env_steps", sampled)
        self.learner.set("run_env_steps", trained)
        self.learner.set("train_seconds", seconds)
        self.reports.sample()


@pytest.fixture
def source() -> Source:
    return Source()


def test_at_the_start_there_are_no_values(source: Source) -> None:
    source.reports.stop()  # stopping a thread that was never started is allowed
    summary = source.reports.summary("interrupted")

    assert (summary.env_steps, summary.episodes, summary.updates, summary.train_seconds) == (0, 0, 0, 0.0)
    assert (summary.fps, summary.sample_fps, summary.episode_return_mean, summary.policy_lag.max) == (None,) * 4
    assert source.reports.best_metric_means() == [None]
    assert json.loads(summary.to_json())["fps"] is None


def test_env_faults_are_summed_over_actors(source: Source) -> None:
    source.actors[0].add("env_restarts", 2)
    source.actors[1].add("env_restarts", 1)
    source.actors[1].add("bad_env_data", 4)

    row = source.reports.scalars()

    assert (row["perf/env_restarts"], row["perf/bad_env_data"]) == (3, 4)
    assert source.reports.progress().env_faults == {"env_restarts": 3, "bad_env_data": 4}


def test_thread_reads_messages_during_the_run_and_all_that_were_sent_before_the_stop(source: Source) -> None:
    source.reports.start()
    source.episodes(1.0, 3.0, length=7)

    assert eventually(lambda: source.reports.episodes.episodes == 2, within_s=30)
    progress = source.reports.progress()
    assert (progress.return_mean, progress.length_mean) == (2.0, 7.0)

    for number in range(60):
        source.episodes(number, number)
    source.reports.stop()

    assert source.reports.episodes.episodes == 122
    assert source.reports.progress().return_mean == (58 + 58 + 59 + 59) / 4


def test_without_the_thread_pending_messages_are_polled(source: Source) -> None:
    source.reports.poll()
    assert source.reports.episodes.episodes == 0

    for number in range(40):
        source.episodes(number, number)
    source.reports.poll()
    source.episodes(7.0)
    source.reports.poll()

    assert source.reports.episodes.episodes == 81
    assert source.reports.progress().return_mean == (38 + 39 + 39 + 7) / 4


def test_mean_of_the_best_metric_needs_a_full_window(source: Source) -> None:
    source.episodes(100.0, 100.0, math.nan, 100.0)
    source.reports.poll()
    assert source.reports.episodes.episodes == 4
    assert source.reports.best_metric_means() == [None]

    source.episodes(0.0, 0.0)
    source.reports.poll()

    assert source.reports.best_metric_means() == [50.0]


def test_sampled_trained_replayed_and_dropped_steps_are_counted_separately(source: Source) -> None:
    counts = {"run_env_steps": 500, "replayed_steps": 250, "dropped_steps": 32, "publications": 9, "target_updates": 4}
    for name, count in {**counts, "datasets": 7, "updates": 8}.items():
        source.learner.set(name, count)
    source.actors[0].set("env_steps", 300)
    source.actors[1].set("env_steps", 400)

    row, reports = source.reports.scalars(), source.reports

    assert (row["perf/sampled_env_steps"], row["perf/trained_env_steps"], row["perf/updates"]) == (700, 500, 8)
    assert (reports.sampled_env_steps, reports.trained_env_steps, reports.updates) == (700, 500, 8)
    assert (row["perf/replayed_steps"], row["perf/dropped_steps"]) == (250, 32)
    assert (row["perf/publications"], row["perf/target_updates"], row["perf/datasets"]) == (9, 4, 7)


def test_rates_start_with_the_first_step(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing happens during the first 50 s.
    for at, sampled, trained, seconds in ((0, 0, 0, 0), (50, 10, 0, 0), (52, 210, 0, 1), (54, 410, 100, 3)):
        source.sample(monkeypatch, at, sampled, trained, seconds)

    progress = source.reports.progress()
    assert progress.sample_fps == 100.0
    assert (progress.fps_10s, progress.fps_60s) == (50.0, 50.0)


def test_shutdown_does_not_count_in_the_sampling_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of({"env": "any", "with_tensorboard": False})
    shared, console = SharedObjects(VECTOR, small_layout(), weight_bytes=8), Console(None, None)
    actor, learner = shared.status.row("sf-actor-0"), shared.status.row("sf-learner-0")
    with RunDir.open(tmp_path, "run") as rundir:
        reporter = Reporter(config, shared, rundir, Resumed(), console, process_started_at=0.0)

        # The last 50 steps are made after the last beat, while processes are being stopped.
        for at, sampled in ((1, 1000), (2, 2000), (3, 3000), (9, 3000), (20, 3050)):
            monkeypatch.setattr(collector_module, "now", lambda at=at: float(at))
            actor.set("env_steps", sampled)
            learner.set("run_env_steps", sampled)
            learner.set("train_seconds", float(at))
            if at < 20:
                reporter.beat()
        summary = reporter.finish("done", None).summary

    assert summary.sample_fps == 1000.0
    assert summary.fps == 3050 / 20.0


def test_highest_rates_are_kept(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    # 300 and 200 steps a second at first, then a tenth of that.
    for at, sampled, trained in ((1, 1, 0), (11, 3001, 2000), (21, 3301, 2200), (31, 3601, 2400)):
        source.sample(monkeypatch, at, sampled, trained, at)

    row = source.reports.scalars()

    assert (row["perf/peak_sample_fps"], row["perf/peak_train_fps"]) == (300.0, 200.0)
    assert (row["perf/sample_fps"], row["perf/fps_10s"]) == (30.0, 20.0)


def test_rows_have_episode_lengths_and_rates_over_five_minutes(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 steps a second for 100 s, then 10 a second for 200 s.
    for at, trained in ((1, 0), (101, 10_000), (301, 12_000)):
        source.sample(monkeypatch, at, 0, trained, at)
    for length in (5, 10, 30):
        source.episodes(1.0, length=length)

    row = source.row()

    assert (row["perf/fps_10s"], row["perf/fps_60s"], row["perf/fps_300s"]) == (10.0, 10.0, 40.0)
    assert [row[f"train/episode_length_{what}"] for what in ("mean", "min", "max")] == [15.0, 5.0, 30.0]


def test_newest_statistics_of_the_learner_are_shown(source: Source) -> None:
    before = source.reports.scalars()
    source.inbox.put(STATS._replace(policy_loss=9.0, lag=PolicyLag(1.0, 2.0, 9.0)))
    source.inbox.put(STATS)
    source.inbox.put(TIMES._replace(load_ms=4.0))
    source.inbox.put(TIMES._replace(grad_ms=3.0))

    row, progress = source.row(), source.reports.progress()

    assert (progress.lag.min, progress.lag.mean, progress.lag.max) == (1.0, 2.0, 3.0)
    assert progress.losses["policy_loss"] == row["train/policy_loss"] == 0.1
    assert row["policy_lag/max"] == 3.0
    assert [row[f"replay_lag/{name}"] for name in ("min", "mean", "max")] == [4.0, 5.0, 6.0]
    assert set(progress.losses) >= {"value_loss", "entropy", "kl", "grad_norm", "learning_rate"}
    names = [f"perf/{name}_ms" for name in ("grad", "update", "load", "load_wait", "dequeue", "publish")]
    assert [row[name] for name in names] == [3.0, 0.5, 4.0, 0.25, None, 0.125]
    assert [before[name] for name in names] == [None] * 6


def test_stable_baselines_names_have_the_same_meaning(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    for at, trained in ((10, 0), (20, 1000), (30, 4000)):
        source.sample(monkeypatch, at, 0, trained, at - 9.0)
    source.learner.set("updates", 40)
    source.learner.set("datasets", 20)
    source.episodes(1.0, 2.0, length=7)
    source.inbox.put(STATS)

    row = source.row()

    assert (row["rollout/ep_rew_mean"], row["rollout/ep_len_mean"]) == (1.5, 7.0)
    assert (row["time/fps"], row["time/total_timesteps"]) == (200.0, 4000)
    assert (row["time/time_elapsed"], row["time/iterations"], row["train/n_updates"]) == (21.0, 20, 40)
    assert (row["train/approx_kl"], row["train/entropy_loss"], row["train/policy_gradient_loss"]) == (0.4, -0.3, 0.1)


def test_summary_has_steps_frames_speed_and_episodes(source: Source) -> None:
    for name, value in {"run_env_steps": 5000, "agent_steps": 15_000, "updates": 20, "train_seconds": 10.0}.items():
        source.learner.set(name, value)
    source.episodes(1.0, 2.0, 3.0, 4.0, 5.0)
    source.inbox.put(STATS)
    source.reports.poll()

    summary = source.reports.summary("done")

    assert (summary.env_steps, summary.agent_steps, summary.frames, summary.updates) == (5000, 15_000, 20_000, 20)
    assert (summary.train_seconds, summary.fps) == (10.0, 500.0)
    assert (summary.episodes, summary.episode_return_mean, summary.best_episode_return_mean) == (5, 3.5, 3.5)
    assert summary.episode_length_mean == 10.0
    assert summary.policy_lag.mean == 2.0


def test_each_of_several_policies_is_reported() -> None:
    source = Source(policies=2)
    source.status.row("sf-learner-0").set("env_steps", 600)
    source.status.row("sf-learner-1").set("env_steps", 400)
    source.episodes(3.0, 5.0, policy=1)

    row, progress, summary = source.row(), source.reports.progress(), source.reports.summary("done")

    assert (progress.returns, progress.return_mean) == ([None, 4.0], 4.0)
    assert [(policy["env_steps"], policy["episodes"]) for policy in summary.policies] == [(600, 0), (400, 2)]
    assert (row["policy_0/perf/trained_env_steps"], row["policy_1/train/episode_return_mean"]) == (600, 4.0)
    assert summary.best_policy is None  # no policy has had stats_avg episodes


def test_best_of_several_policies_is_the_best_of_one_of_them() -> None:
    source = Source(policies=3)
    for policy, score in ((0, 1.0), (1, 9.0), (0, 1.0), (0, 1.0), (1, 5.0), (2, 6.5)):
        source.episodes(score, score, policy=policy)
    row, summary = source.row(), source.reports.summary("done")

    means = [policy["episode_return_mean"] for policy in summary.policies]
    bests = [policy["best_episode_return_mean"] for policy in summary.policies]
    assert (means, bests) == ([1.0, 7.0, 6.5], [1.0, 7.0, 6.5])
    assert (summary.best_episode_return_mean, summary.best_policy) == (7.0, 1)
    assert source.reports.progress().best_return_mean == row["train/best_episode_return_mean"] == 7.0

    source.extras("true_objective", 0.1, 0.1, 0.1, 0.1, policy=1)
    source.extras("true_objective", 0.9, 0.9, 0.9, 0.9, policy=2)
    source.reports.poll()
    assert source.reports.summary("done").best_policy == 2


def test_policy_lag_of_the_summary_covers_the_session(source: Source) -> None:
    source.inbox.put(STATS._replace(updates=10.0, lag=PolicyLag(5.0, 6.0, 40.0)))
    source.inbox.put(STATS._replace(updates=1.0, lag=PolicyLag(0.0, 28.0, 30.0)))
    source.inbox.put(STATS._replace(updates=5.0, lag=PolicyLag(1.0, 2.0, 3.0)))
    source.reports.poll()

    lag = source.reports.summary("done").policy_lag
    # The mean is over updates, not over reports; progress shows the last report only.
    assert (lag.min, lag.mean, lag.max) == (0.0, (60.0 + 28.0 + 10.0) / 16.0, 40.0)
    assert source.reports.progress().lag.max == 3.0


def test_report_without_new_or_replayed_steps_has_no_lag(source: Source) -> None:
    source.inbox.put(STATS._replace(updates=10.0, lag=PolicyLag(5.0, 6.0, 40.0)))
    source.inbox.put(STATS._replace(updates=10.0, lag=PolicyLag(), replay_lag=PolicyLag()))

    row = source.row()

    assert {row[f"{kind}_lag/{name}"] for kind in ("policy", "replay") for name in ("min", "mean", "max")} == {None}
    assert source.reports.summary("done").policy_lag.mean == 6.0


def test_rows_have_the_same_names_from_the_start(source: Source) -> None:
    before = source.reports.scalars()
    source.episodes(1.0)
    source.inbox.put(STATS)
    source.inbox.put(TIMES)

    assert list(source.row()) == list(before)
    assert (before["train/true_objective_mean"], before["train/episode_length_max"]) == (None, None)


def test_extra_statistics_have_their_own_windows(source: Source) -> None:
    source.extras("kills", 100.0, 1.0, 2.0)
    source.extras("kills", 3.0, math.nan, 6.0, actor=1)
    source.extras("level/coins", 5.0)

    row, summary = source.row(), source.reports.summary("done")

    assert {key: value for key, value in row.items() if key.startswith("train/extra/")} == {
        "train/extra/kills_mean": 3.0,
        "train/extra/kills_min": 1.0,
        "train/extra/kills_max": 6.0,
        "train/extra/level/coins_mean": 5.0,
        "train/extra/level/coins_min": 5.0,
        "train/extra/level/coins_max": 5.0,
    }
    assert summary.episode_extra_stats == {"kills": 3.0, "level/coins": 5.0}


def test_true_objective_is_the_return_if_envs_report_none(source: Source) -> None:
    source.episodes(1.0, 3.0)
    assert source.row()["train/true_objective_max"] == 3.0
    assert source.reports.progress().true_objective_mean == source.reports.summary("done").true_objective_mean == 2.0

    source.extras("true_objective", 0.25, 0.75)
    row = source.row()

    assert [row[f"train/true_objective_{what}"] for what in ("mean", "min", "max")] == [0.5, 0.25, 0.75]
    assert source.reports.progress().true_objective_mean == source.reports.summary("done").true_objective_mean == 0.5
    assert row["train/episode_return_mean"] == 2.0
    assert [key for key in row if key.startswith("train/extra/")] == []


@pytest.mark.parametrize(
    ("metric", "statistic", "mean"),
    [("true_objective", "true_objective", 5.0), ("kills", "kills", 5.0), ("reward", "reward", 100.0)],
)
def test_best_metric_is_the_return_or_an_extra_statistic(
    metric: str, statistic: str, mean: float, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(save_best_metric=metric)
    source.extras(statistic, 1.0, 2.0, 3.0)
    source.episodes(100.0, 100.0, 100.0, 100.0)
    source.extras(statistic, 6.0, 9.0)
    source.reports.poll()

    assert source.reports.best_metric_means() == [mean]
    assert caplog.messages == []


def test_best_metric_that_is_not_reported_is_logged_once_and_may_come_later(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(save_best_metric="kills")
    source.extras("coins", 1.0)
    source.episodes(1.0, 2.0, 3.0)
    source.reports.poll()
    assert caplog.messages == []

    for _ in range(3):
        source.episodes(4.0)
        source.reports.poll()

    (message,) = caplog.messages
    assert "save_best_metric=kills" in message
    assert "reward, coins" in message
    assert source.reports.best_metric_means() == [None]
    source.extras("kills", 1.0, 2.0, 3.0, 4.0)
    source.reports.poll()
    assert source.reports.best_metric_means() == [2.5]


def test_true_objective_that_is_not_reported_stays_the_return(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(save_best_metric="true_objective")

    source.episodes(1.0, 2.0, 3.0, 4.0)
    source.reports.poll()
    source.extras("true_objective", 0.0, 0.0, 0.0, 0.0)
    source.reports.poll()

    assert source.reports.best_metric_means() == [2.5]
    (message,) = caplog.messages
    assert "highest return" in message


def test_refused_statistics_are_one_warning_per_actor(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    for actor in (0, 1, 0, 1):
        source.inbox.put(ExtrasRefused(actor, "'kills' is a str"))
    source.reports.poll()

    assert [message.partition(": ")[0] for message in caplog.messages] == ["sf-actor-0", "sf-actor-1"]
    assert all("'kills' is a str" in message for message in caplog.messages)


def test_names_beyond_the_limit_are_ignored_with_a_warning(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MAX_STAT_NAMES + 3):
        source.extras(f"name{number:03}", 1.0)
        source.reports.poll()

    assert len(source.reports.summary("done").episode_extra_stats) == 64
    (message,) = caplog.messages
    assert "name064" in message


def test_rows_have_the_memory_of_running_processes(source: Source) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        source.actors[1].set("pid", child.pid)
        with_child = [key for key in source.reports.scalars() if key.startswith("memory/")]
    without = [key for key in source.reports.scalars() if key.startswith("memory/")]

    assert with_child == ["memory/sf-main_mb", "memory/sf-actor-1_mb", "memory/total_mb"]
    assert without == ["memory/sf-main_mb", "memory/total_mb"]


def test_resumed_run_reports_its_earlier_state_before_the_learner_has_loaded_it(source: Source) -> None:
    source.episodes(3.0, 5.0, length=7)
    source.reports.poll()
    last = dataclasses.replace(source.reports.summary("interrupted"), best_episode_return_mean=4.0)
    resumed = Resumed(env_steps=1000, train_seconds=20.0, updates=30, best_return=4.0, summary=last)

    reports = ReportCollector(CONFIG, source.inbox, [], StatusBoard(["sf-learner-0", "sf-actor-0"]), resumed)

    assert (reports.progress().env_steps, reports.saved_env_steps) == (1000, 1000)
    assert reports.scalars()["perf/train_seconds"] == 20.0
    assert reports.scalars()["perf/updates"] == 30
    ended = reports.summary("interrupted")
    assert (ended.env_steps, ended.updates, ended.episodes) == (1000, 30, 2)
    # No episode has ended in this session, so those of the last session count.
    assert (ended.episode_return_mean, ended.episode_length_mean, ended.true_objective_mean) == (4.0, 7.0, 4.0)
