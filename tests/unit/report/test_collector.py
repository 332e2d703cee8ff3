"""Reports of child processes become progress, metrics rows and the summary."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfactory.config.flags import config_of
from sfactory.config.schema import CheckpointConfig, Config, PopulationConfig, ReportConfig, SamplingConfig
from sfactory.experiment.resume import Resumed, ResumedPolicy
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Summary
from sfactory.messages import (
    MAX_REPORT_BYTES,
    MAX_STAT_NAMES,
    TO_MAIN,
    TRAIN_STATISTICS,
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
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import StatusBoard
from tests.support.parts import VECTOR, small_layout
from tests.support.processes import eventually

CONFIG = Config(report=ReportConfig(stats_avg=4), sampling=SamplingConfig(env_frameskip=4))
# Each statistic is its place in the row, from 0.0.
NUMBERS = {name: float(place) for place, name in enumerate(TRAIN_STATISTICS)}
STATS = TrainStats(policy=0, updates=2.0, lag=PolicyLag(1.0, 2.0, 3.0), replay_lag=PolicyLag(4.0, 5.0, 6.0), **NUMBERS)
TIMES = LearnerTimes(
    policy=0, grad_ms=1.5, update_ms=0.5, load_ms=math.nan, load_wait_ms=0.25, dequeue_ms=math.nan, publish_ms=0.125
)


@pytest.fixture(name="source")
def _source() -> Source:
    return Source()


class Source:
    """A collector and everything that feeds it."""

    def __init__(
        self,
        save_best_metric: str = "reward",
        policies: int = 1,
        resumed: Resumed | None = None,
        train_policies: tuple[int, ...] = (),
        stats_avg: int = 4,
        **population: Any,
    ) -> None:
        config = dataclasses.replace(
            CONFIG,
            report=ReportConfig(stats_avg=stats_avg),
            checkpoint=CheckpointConfig(save_best_metric=save_best_metric),
            population=PopulationConfig(num_policies=policies, train_policies=train_policies, **population),
        )
        self.inbox: Channel[ToMain] = Channel("sf-main", TO_MAIN, 64, MAX_REPORT_BYTES)
        learners = [f"sf-learner-{policy}" for policy in range(policies)]
        self.status = StatusBoard([*learners, "sf-actor-0", "sf-actor-1"])
        self.learner = self.status.row("sf-learner-0")
        self.actors = [self.status.row(f"sf-actor-{actor}") for actor in range(2)]
        self.reports = ReportCollector(config, self.inbox, [], self.status, resumed)

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


def test_counters_and_memory_of_processes_are_in_rows(source: Source) -> None:
    counts = {"run_env_steps": 500, "replayed_steps": 250, "dropped_steps": 32, "publications": 9, "target_updates": 4}
    for name, count in {**counts, "datasets": 7, "updates": 8}.items():
        source.learner.set(name, count)
    for actor, steps in zip(source.actors, (300, 400), strict=True):
        actor.set("env_steps", steps)
        actor.set("env_restarts", 2)
        actor.set("bad_env_data", 3)
    source.actors[1].set("pid", os.getppid())

    row = source.reports.scalars()

    expected = {**counts, "datasets": 7, "updates": 8, "sampled_env_steps": 700, "env_restarts": 4, "bad_env_data": 6}
    expected["trained_env_steps"] = expected.pop("run_env_steps")
    assert {name: row[f"perf/{name}"] for name in expected} == expected
    assert source.reports.progress().env_faults == {"env_restarts": 4, "bad_env_data": 6}
    names = [name for name in row if name.startswith("memory/")]
    assert names == ["memory/sf-main_mb", "memory/sf-actor-1_mb", "memory/total_mb"]


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


def test_rates_cover_their_windows_and_the_highest_are_kept(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    # A start-up of 50 s, 300 and 200 steps a second for 10 s, then a tenth of that for 290 s.
    counts = ((-49, 0, 0), (1, 1, 0), (11, 3001, 2000), (241, 9901, 6600), (301, 11_701, 7800))
    for at, sampled, trained in counts:
        source.sample(monkeypatch, at, sampled, trained, max(at, 0))

    row = source.reports.scalars()
    progress = source.reports.progress()
    assert (progress.sample_fps, progress.fps_10s, progress.fps_60s) == (30.0, 20.0, 20.0)
    # Start-up is not part of the rates.
    assert (source.reports.summary("done").sample_fps, row["time/fps"]) == (39.0, 26.0)

    assert (row["perf/peak_sample_fps"], row["perf/peak_train_fps"]) == (300.0, 200.0)
    assert (row["perf/sample_fps"], row["perf/fps_10s"], row["perf/fps_60s"]) == (30.0, 20.0, 20.0)
    assert row["perf/fps_300s"] == 7800 / 300


def test_newest_statistics_of_the_learner_are_shown_and_at_the_start_there_are_none(source: Source) -> None:
    before, summary = source.reports.scalars(), source.reports.summary("interrupted")
    assert (summary.fps, summary.sample_fps, summary.episode_return_mean, summary.policy_lag.max) == (None,) * 4
    source.episodes(1.0)
    source.inbox.put(STATS._replace(policy_loss=-9.0, lag=PolicyLag(1.0, 2.0, 9.0)))
    source.inbox.put(STATS)
    source.inbox.put(TIMES._replace(load_ms=4.0))
    source.inbox.put(TIMES._replace(grad_ms=3.0))

    row, progress = source.row(), source.reports.progress()

    assert progress.losses == {name: row[f"train/{name}"] for name in TRAIN_STATISTICS} == NUMBERS
    assert progress.lag == STATS.lag
    lags = [row[f"{kind}_lag/{name}"] for kind in ("policy", "replay") for name in ("min", "mean", "max")]
    assert lags == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    names = [f"perf/{name}_ms" for name in ("grad", "update", "load", "load_wait", "dequeue", "publish")]
    assert [row[name] for name in names] == [3.0, 0.5, 4.0, 0.25, None, 0.125]
    # Names are present from the start.
    assert list(row) == list(before)
    assert [before[name] for name in (*names, "train/true_objective_mean")] == [None] * 7


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
    assert (row["train/approx_kl"], row["train/policy_gradient_loss"]) == (STATS.kl, STATS.policy_loss)
    assert row["train/entropy_loss"] == -STATS.entropy


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


def test_each_of_several_policies_is_reported_and_the_best_is_one_of_them() -> None:
    source = Source(policies=3)
    for policy, steps in enumerate((600, 400, 0)):
        source.status.row(f"sf-learner-{policy}").set("env_steps", steps)
    source.episodes(3.0, 5.0, policy=1)
    row, progress, summary = source.row(), source.reports.progress(), source.reports.summary("done")

    assert (progress.returns, progress.return_mean) == ([None, 4.0, None], 4.0)
    assert [(each["env_steps"], each["episodes"]) for each in summary.policies] == [(600, 0), (400, 2), (0, 0)]
    assert (row["policy_0/perf/trained_env_steps"], row["policy_1/train/episode_return_mean"]) == (600, 4.0)
    assert summary.best_policy is None  # no policy has had stats_avg episodes
    assert not summary.best_is_full

    for policy, score in ((0, 1.0), (0, 1.0), (0, 1.0), (1, 12.0), (2, 6.5)):
        source.episodes(score, score, policy=policy)
    row, progress, summary = source.row(), source.reports.progress(), source.reports.summary("done")

    assert [each["best_episode_return_mean"] for each in summary.policies] == [1.0, 8.0, 6.5]
    assert [each["best_is_full"] for each in summary.policies] == [True, True, False]
    assert summary.best_is_full
    assert (summary.best_episode_return_mean, summary.best_policy) == (8.0, 1)
    assert progress.best_return_mean == row["train/best_episode_return_mean"] == 8.0

    source.extras("true_objective", 0.1, 0.1, 0.1, 0.1, policy=1)
    source.extras("true_objective", 0.9, 0.9, 0.9, 0.9, policy=2)
    source.reports.poll()
    assert source.reports.summary("done").best_policy == 2


def test_of_policies_that_play_agents_of_their_own_none_is_the_best() -> None:
    last = Summary("interrupted", 1000, 1000, 1000, 9.0, episodes=30, best_policy=1)
    source = Source(policies=2, policy_mapping="red_*=0,blue_*=1", resumed=Resumed(1000, summary=last))
    for policy, score in enumerate((1.0, 8.0)):
        source.episodes(score, score, score, policy=policy)
    source.row()

    summary = source.reports.summary("done")

    assert [each["best_episode_return_mean"] for each in summary.policies] == [1.0, 8.0]
    assert summary.best_policy is None


def test_the_steps_and_speed_of_each_policy_that_learns_are_in_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(policies=3, train_policies=(0, 2))
    for second in (0, 5, 10):
        source.status.row("sf-learner-2").set("env_steps", 30 * second)
        source.learner.set("env_steps", 20 * second)
        source.sample(monkeypatch, at=second, sampled=0, trained=50 * second, seconds=second + 1)

    progress = source.reports.progress()

    assert progress.learning == [(200, 20.0), (300, 30.0)]
    assert (progress.env_steps, progress.least_env_steps) == (500, 200)


def test_episodes_and_the_best_of_each_policy_are_continued_after_a_resume() -> None:
    entries = [
        {"episodes": 20, "episode_return_mean": 3.0, "best_episode_return_mean": 9.0, "true_objective_mean": 3.0},
        {"episodes": 10, "episode_return_mean": 5.0, "best_episode_return_mean": 6.0, "true_objective_mean": 5.0},
    ]
    last = Summary("interrupted", 1000, 1000, 1000, 9.0, episodes=30, policies=entries, best_policy=1)
    policies = ResumedPolicy(600, 0.0, 20, 9.0, entry=entries[0]), ResumedPolicy(400, 0.0, 15, entry=entries[1])
    source = Source(policies=2, resumed=Resumed(1000, best_return=9.0, summary=last, policies=policies))
    source.episodes(7.0, 8.0, policy=1)

    row, summary = source.row(), source.reports.summary("done")

    assert (row["train/episodes"], summary.episodes) == (37, 37)
    assert [row[f"policy_{policy}/train/episodes"] for policy in range(2)] == [20, 17]
    assert [row[f"policy_{policy}/train/best_episode_return_mean"] for policy in range(2)] == [9.0, 7.5]
    shown = ("episodes", "episode_return_mean", "best_episode_return_mean", "true_objective_mean")
    assert [[each[name] for name in shown] for each in summary.policies] == [[20, 3.0, 9.0, 3.0], [17, 7.5, 7.5, 7.5]]


def test_policy_lag_of_the_summary_covers_the_session(source: Source) -> None:
    for updates, lag in ((10.0, (5.0, 6.0, 40.0)), (1.0, (0.0, 28.0, 30.0)), (5.0, (1.0, 2.0, 3.0))):
        source.inbox.put(STATS._replace(updates=updates, lag=PolicyLag(*lag)))
    source.inbox.put(STATS._replace(lag=PolicyLag(), replay_lag=PolicyLag()))  # without new or replayed steps
    row = source.row()

    # The mean is over updates, not over reports.
    assert source.reports.summary("done").policy_lag == PolicyLag(0.0, (60.0 + 28.0 + 10.0) / 16.0, 40.0)
    assert {row[f"{kind}_lag/{name}"] for kind in ("policy", "replay") for name in ("min", "mean", "max")} == {None}


def test_true_objective_is_the_return_if_envs_report_none_and_extras_have_their_own_windows(source: Source) -> None:
    source.episodes(1.0, 3.0)
    for objectives, expected in (((), [2.0, 1.0, 3.0]), ((0.25, 0.75), [0.5, 0.25, 0.75])):
        if objectives:
            source.extras("true_objective", *objectives)
        row, reports = source.row(), source.reports

        assert [row[f"train/true_objective_{what}"] for what in ("mean", "min", "max")] == expected
        assert reports.progress().true_objective_mean == reports.summary("done").true_objective_mean == expected[0]
        assert row["train/episode_return_mean"] == 2.0
        assert [key for key in row if key.startswith("train/extra/")] == []

    source.extras("kills", 100.0, 1.0, 2.0)
    source.extras("kills", 3.0, math.nan, 6.0, actor=1)
    row = source.row()
    assert [row[f"train/extra/kills_{what}"] for what in ("mean", "min", "max")] == [3.0, 1.0, 6.0]
    assert source.reports.summary("done").episode_extra_stats == {"kills": 3.0}


@pytest.mark.parametrize(("metric", "mean"), [("true_objective", 5.0), ("kills", 5.0), ("reward", 100.0)])
def test_best_metric_is_the_return_or_an_extra_statistic(
    metric: str, mean: float, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(save_best_metric=metric)
    source.extras(metric, 1.0, 2.0, 3.0)
    source.episodes(100.0, 100.0, math.nan, 100.0)
    source.reports.poll()
    assert source.reports.best_metric_means() == [None]  # a mean needs a full window

    source.extras(metric, 6.0, 9.0)
    source.episodes(100.0)
    source.reports.poll()
    source.reports.check_best_metric()

    assert source.reports.best_metric_means() == [mean]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("metric", "words", "before", "after"),
    [
        ("kills", "save_best_metric=kills: .*reward .the return., coins; eval_return is", None, 2.5),
        ("true_objective", "highest return", 4.0, 4.0),
    ],
)
def test_best_metric_that_is_not_reported_is_logged_once(
    metric: str, words: str, before: float | None, after: float, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(save_best_metric=metric)
    source.extras("coins", 1.0)
    source.episodes(4.0, 4.0, 4.0)
    for _ in range(3):
        source.reports.poll()
        source.reports.check_best_metric()
    assert caplog.messages == []

    source.episodes(4.0)
    source.reports.poll()
    source.reports.check_best_metric()  # an observer may report it for what has just come
    assert caplog.messages == []
    for _ in range(3):
        source.reports.check_best_metric()
    (message,) = caplog.messages
    assert re.search(words, message)
    assert source.reports.best_metric_means() == [before]

    # Other metrics may come later, but the true objective stays the return.
    source.extras(metric, 1.0, 2.0, 3.0, 4.0)
    source.reports.poll()
    assert source.reports.best_metric_means() == [after]


def test_best_metric_that_only_some_policies_report_is_logged_for_each_other_one_that_learns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source(save_best_metric="red_score", policies=3, train_policies=(0, 1))
    source.extras("red_score", 1.0, policy=0)
    for policy in range(3):
        source.episodes(4.0, 4.0, 4.0, 4.0, policy=policy)

    for _ in range(4):
        source.reports.poll()
        source.reports.check_best_metric()

    (message,) = caplog.messages
    assert message.startswith("policy 1: save_best_metric=red_score: none of the first 4 episodes reported it")


def test_best_metric_that_no_policy_reports_is_logged_once_for_all(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(save_best_metric="red_score", policies=2)
    source.episodes(4.0, 4.0, 4.0, 4.0, policy=0)

    for policy in (0, 1):
        source.episodes(4.0, 4.0, 4.0, 4.0, policy=policy)
        for _ in range(3):
            source.reports.poll()
            source.reports.check_best_metric()

    (message,) = caplog.messages
    assert message.startswith("save_best_metric=red_score: none of the first 8 episodes reported it")


@pytest.mark.parametrize(
    ("flags", "team", "warned"),
    [
        ({}, 0.0, True),
        ({"policies": 2, "policy_mapping": "env"}, 0.0, True),
        ({"policies": 2}, 0.0, False),  # each agent has a policy of its own
        ({"opponent_pool": 4}, 0.0, False),
        ({"save_best_metric": "kills"}, 0.0, False),
        ({}, 0.5, False),
    ],
)
def test_a_policy_that_plays_both_sides_of_a_zero_sum_game_is_warned_of_once(
    flags: dict[str, Any], team: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(**flags, stats_avg=10)
    source.extras("kills", 1.0)
    for name, value in (("team_return", team), ("return/red", 1.0), ("return/blue", -1.0)):
        source.extras(name, *[value] * 9)
    source.reports.poll()
    source.reports.check_best_metric()
    assert caplog.messages == []

    source.extras("team_return", team)
    for _ in range(3):
        source.reports.poll()
        source.reports.check_best_metric()

    assert ["sfactory.match" in message for message in caplog.messages] == [True] * warned


def test_refused_statistics_and_too_many_names_are_one_warning_per_actor(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    for actor in (0, 1, 0, 1):
        source.inbox.put(ExtrasRefused(actor, "'kills' is a str"))
    source.reports.poll()
    for number in range(MAX_STAT_NAMES + 3):
        source.extras(f"name{number:03}", 1.0, actor=2)
        source.reports.poll()

    assert [message.partition(": ")[0] for message in caplog.messages] == [f"sf-actor-{actor}" for actor in range(3)]
    assert ["'kills' is a str" in message for message in caplog.messages] == [True, True, False]
    assert "name064" in caplog.messages[2]
    assert len(source.reports.summary("done").episode_extra_stats) == 64


def test_resumed_run_reports_its_earlier_state_before_the_learner_has_loaded_it(source: Source) -> None:
    source.episodes(3.0, 5.0, length=7)
    source.extras("kills", 2.0)
    source.reports.poll()
    last = dataclasses.replace(source.reports.summary("interrupted"), best_episode_return_mean=4.0)
    resumed = Resumed(env_steps=1000, train_seconds=20.0, updates=30, best_return=4.0, summary=last)

    reports = ReportCollector(CONFIG, source.inbox, [], StatusBoard(["sf-learner-0", "sf-actor-0"]), resumed)

    assert (reports.progress().env_steps, reports.saved_env_steps) == (1000, 1000)
    assert reports.scalars()["perf/train_seconds"] == 20.0
    assert reports.scalars()["perf/updates"] == 30
    ended = reports.summary("interrupted")
    reports.stop()  # stopping a thread that was never started is allowed
    assert (ended.env_steps, ended.updates, ended.episodes) == (1000, 30, 2)
    # No episode has ended in this session, so those of the last session count.
    assert (ended.episode_return_mean, ended.episode_length_mean, ended.true_objective_mean) == (4.0, 7.0, 4.0)
    assert ended.episode_extra_stats == {"kills": 2.0}
    source.episodes(9.0)
    reports.poll()
    assert reports.summary("interrupted").episode_extra_stats == {}
    assert (reports.progress().return_mean, reports.progress().best_return_mean) == (9.0, 4.0)  # of one episode
