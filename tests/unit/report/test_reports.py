"""What children report is gathered into progress, rows and the summary, with nothing counted twice."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import subprocess
import sys
from collections.abc import Iterator
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
from sfactory.report import collector as reports_module
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


class Desk:
    """Reports with the ends of what feeds it."""

    def __init__(self, save_best_metric: str = "reward") -> None:
        config = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(save_best_metric=save_best_metric))
        self.inbox: Channel[ToMain] = Channel("sf-main", TO_MAIN, 64, MAX_REPORT_BYTES)
        self.status = StatusBoard(["sf-learner-0", "sf-actor-0", "sf-actor-1"])
        self.reports = ReportCollector(config, self.inbox, [], self.status)

    def episodes(self, *returns: float, length: int = 10) -> None:
        self.inbox.put(EpisodesDone(0, np.array(returns, np.float64), np.full(len(returns), length)))

    def extras(self, name: str, *values: float, actor: int = 0) -> None:
        self.inbox.put(EpisodeExtras(actor, name, np.array(values, np.float64)))

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
    assert desk.reports.window_means() == [None]
    assert json.loads(summary.to_json())["fps"] is None


def test_faults_of_envs_are_those_of_all_actors(desk: Desk) -> None:
    desk.status.row("sf-actor-0").add("env_restarts", 2)
    desk.status.row("sf-actor-1").add("env_restarts", 1)
    desk.status.row("sf-actor-1").add("bad_env_data", 4)

    row = desk.reports.scalars()

    assert (row["perf/env_restarts"], row["perf/bad_env_data"]) == (3, 4)
    assert desk.reports.progress().env_faults == {"env_restarts": 3, "bad_env_data": 4}


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
    assert desk.reports.window_means() == [None]

    desk.episodes(0.0, 0.0)

    assert eventually(lambda: desk.reports.window_means() != [None], within_s=30)
    assert desk.reports.window_means() == [50.0]


def test_trained_and_sampled_steps_are_counted_apart(desk: Desk) -> None:
    desk.status.row("sf-learner-0").set("run_env_steps", 100)
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
        learner.set("run_env_steps", trained)
        learner.set("train_seconds", seconds)
        desk.reports.sample()

    progress = desk.reports.progress()
    assert progress.sample_fps == 100.0
    assert (progress.fps_10s, progress.fps_60s) == (50.0, 50.0)


def test_ending_a_run_is_no_part_of_its_rate_of_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of({"env": "any", "with_tensorboard": False})
    shared, console = SharedObjects(VECTOR, small_layout(), weight_bytes=8), Console(None, None)
    actor, learner = shared.status.row("sf-actor-0"), shared.status.row("sf-learner-0")
    with RunDir.open(tmp_path, "run") as rundir:
        reporting = Reporter(config, shared, rundir, Resumed(), console, process_started_at=0.0)

        # (time, sampled): the last steps are made between the last beat and the end of all processes.
        for at, sampled in ((1, 1000), (2, 2000), (3, 3000), (9, 3000), (20, 3050)):
            monkeypatch.setattr(reports_module, "now", lambda at=at: float(at))
            actor.set("env_steps", sampled)
            learner.set("run_env_steps", sampled)
            learner.set("train_seconds", float(at))
            if at < 20:
                reporting.beat()
        summary = reporting.finish("done", None).summary

    assert summary.sample_fps == 1000.0
    assert summary.fps == 3050 / 20.0


def test_the_last_statistics_of_the_learner_are_shown(desk: Desk) -> None:
    desk.inbox.put(STATS._replace(policy_loss=9.0, lag=PolicyLag(1.0, 2.0, 9.0)))
    desk.inbox.put(STATS)

    desk.read_all()

    progress, row = desk.reports.progress(), desk.reports.scalars()
    assert (progress.lag.min, progress.lag.mean, progress.lag.max) == (1.0, 2.0, 3.0)
    assert progress.losses["policy_loss"] == row["train/policy_loss"] == 0.1
    assert row["policy_lag/max"] == 3.0
    assert [row[f"replay_lag/{name}"] for name in ("min", "mean", "max")] == [4.0, 5.0, 6.0]
    assert set(progress.losses) >= {"value_loss", "entropy", "kl", "grad_norm", "learning_rate"}


def test_the_times_of_the_learner_are_those_that_it_told_last_of_each(desk: Desk) -> None:
    before = desk.reports.scalars()
    desk.inbox.put(TIMES._replace(load_ms=4.0))
    desk.inbox.put(TIMES._replace(grad_ms=3.0))

    desk.read_all()

    row = desk.reports.scalars()
    names = ("grad", "update", "load", "load_wait", "dequeue", "publish")
    assert [row[f"perf/{name}_ms"] for name in names] == [3.0, 0.5, 4.0, 0.25, None, 0.125]
    assert [before[f"perf/{name}_ms"] for name in names] == [None] * 6


def test_steps_that_are_sampled_trained_replayed_and_dropped_are_told_apart(desk: Desk) -> None:
    learner = desk.status.row("sf-learner-0")
    counts = {"run_env_steps": 500, "replayed_steps": 250, "dropped_steps": 32, "publications": 9, "target_updates": 4}
    for name, count in counts.items():
        learner.set(name, count)
    learner.set("datasets", 7)
    for actor, steps in enumerate((300, 400)):
        desk.status.row(f"sf-actor-{actor}").set("env_steps", steps)

    row = desk.reports.scalars()

    assert (row["perf/sampled_env_steps"], row["perf/trained_env_steps"]) == (700, 500)
    assert (row["perf/replayed_steps"], row["perf/dropped_steps"]) == (250, 32)
    assert (row["perf/publications"], row["perf/target_updates"], row["perf/datasets"]) == (9, 4, 7)


def test_the_highest_rates_are_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, learner = desk.status.row("sf-actor-0"), desk.status.row("sf-learner-0")
    # (time, sampled, trained): 300 and 200 steps a second at first, then a tenth of that.
    for at, sampled, trained in ((1, 1, 0), (11, 3001, 2000), (21, 3301, 2200), (31, 3601, 2400)):
        monkeypatch.setattr(reports_module, "now", lambda at=at: float(at))
        actor.set("env_steps", sampled)
        learner.set("run_env_steps", trained)
        learner.set("train_seconds", float(at))
        desk.reports.sample()

    row = desk.reports.scalars()

    assert (row["perf/peak_sample_fps"], row["perf/peak_train_fps"]) == (300.0, 200.0)
    assert (row["perf/sample_fps"], row["perf/fps_10s"]) == (30.0, 20.0)


def test_stable_baselines_names_show_what_means_the_same_there(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = desk.status.row("sf-learner-0")
    for at, trained in ((10, 0), (20, 1000), (30, 4000)):
        monkeypatch.setattr(reports_module, "now", lambda at=at: float(at))
        learner.set("run_env_steps", trained)
        learner.set("train_seconds", at - 9.0)
        desk.reports.sample()
    learner.set("updates", 40)
    learner.set("datasets", 20)
    desk.episodes(1.0, 2.0, length=7)
    desk.inbox.put(STATS)
    desk.read_all()

    row = desk.reports.scalars()

    assert (row["rollout/ep_rew_mean"], row["rollout/ep_len_mean"]) == (1.5, 7.0)
    assert (row["time/fps"], row["time/total_timesteps"]) == (200.0, 4000)
    assert (row["time/time_elapsed"], row["time/iterations"], row["train/n_updates"]) == (21.0, 20, 40)
    assert (row["train/approx_kl"], row["train/entropy_loss"], row["train/policy_gradient_loss"]) == (0.4, -0.3, 0.1)


def test_the_summary_tells_frames_and_training_speed(desk: Desk) -> None:
    learner = desk.status.row("sf-learner-0")
    learner.set("run_env_steps", 5000)
    learner.set("agent_steps", 15_000)
    learner.set("updates", 20)
    learner.set("train_seconds", 10.0)
    desk.episodes(1.0, 2.0, 3.0, 4.0, 5.0)
    desk.inbox.put(STATS)
    desk.read_all()

    summary = desk.reports.summary("done")

    assert (summary.env_steps, summary.agent_steps, summary.frames, summary.updates) == (5000, 15_000, 20_000, 20)
    assert (summary.train_seconds, summary.fps) == (10.0, 500.0)
    assert (summary.episodes, summary.episode_return_mean, summary.best_episode_return_mean) == (5, 3.5, 3.5)
    assert summary.episode_length_mean == 10.0
    assert summary.policy_lag.mean == 2.0


def test_of_several_policies_each_is_told_apart() -> None:
    config = dataclasses.replace(CONFIG, population=PopulationConfig(num_policies=2))
    inbox: Channel[ToMain] = Channel("sf-main", TO_MAIN, 64, MAX_REPORT_BYTES)
    status = StatusBoard(["sf-learner-0", "sf-learner-1"])
    reports = ReportCollector(config, inbox, [], status)
    status.row("sf-learner-0").set("env_steps", 600)
    status.row("sf-learner-1").set("env_steps", 400)
    inbox.put(EpisodesDone(0, np.array([3.0, 5.0]), np.array([10, 10]), policy=1))

    reports.poll()

    assert reports.progress().returns == [None, 4.0]
    assert [(told["env_steps"], told["episodes"]) for told in reports.summary("done").policies] == [(600, 0), (400, 2)]
    assert reports.progress().return_mean == 4.0
    assert reports.summary("done").best_policy is None  # nobody has had stats_avg episodes


def test_the_best_of_several_policies_is_the_best_of_one_and_not_of_all_together() -> None:
    config = dataclasses.replace(CONFIG, population=PopulationConfig(num_policies=3))
    inbox: Channel[ToMain] = Channel("sf-main", TO_MAIN, 64, MAX_REPORT_BYTES)
    reports = ReportCollector(config, inbox, [], StatusBoard([f"sf-learner-{policy}" for policy in range(3)]))

    for policy, score in ((0, 1.0), (1, 9.0), (0, 1.0), (0, 1.0), (1, 5.0), (2, 6.5)):
        inbox.put(EpisodesDone(0, np.array([score, score]), np.array([10, 10]), policy=policy))
    reports.poll()

    summary = reports.summary("done")
    means = [told["episode_return_mean"] for told in summary.policies]
    bests = [told["best_episode_return_mean"] for told in summary.policies]
    assert (means, bests) == ([1.0, 7.0, 6.5], [1.0, 7.0, 6.5])
    assert (summary.best_episode_return_mean, summary.best_policy) == (7.0, 1)
    assert reports.progress().best_return_mean == reports.scalars()["train/best_episode_return_mean"] == 7.0


def test_an_episode_without_a_finite_return_enters_no_mean(desk: Desk) -> None:
    desk.episodes(1.0, math.nan, 3.0)

    desk.read_all()

    assert desk.reports.episodes.episodes == 3
    assert desk.reports.progress().return_mean == 2.0


def test_the_policy_lag_of_the_summary_covers_the_whole_session(desk: Desk) -> None:
    desk.inbox.put(STATS._replace(updates=10.0, lag=PolicyLag(5.0, 6.0, 40.0)))
    desk.inbox.put(STATS._replace(updates=1.0, lag=PolicyLag(0.0, 28.0, 30.0)))
    desk.inbox.put(STATS._replace(updates=5.0, lag=PolicyLag(1.0, 2.0, 3.0)))

    desk.read_all()

    lag = desk.reports.summary("done").policy_lag
    # The mean is over updates, not over reports; progress shows the last report alone.
    assert (lag.min, lag.mean, lag.max) == (0.0, (60.0 + 28.0 + 10.0) / 16.0, 40.0)
    assert desk.reports.progress().lag.max == 3.0


def test_a_report_without_new_or_replayed_steps_has_no_lag_of_them(desk: Desk) -> None:
    desk.inbox.put(STATS._replace(updates=10.0, lag=PolicyLag(5.0, 6.0, 40.0)))
    desk.inbox.put(STATS._replace(updates=10.0, lag=PolicyLag(), replay_lag=PolicyLag()))

    desk.read_all()

    row = desk.reports.scalars()
    assert {row[f"{whose}_lag/{name}"] for whose in ("policy", "replay") for name in ("min", "mean", "max")} == {None}
    assert desk.reports.summary("done").policy_lag.mean == 6.0


def test_a_session_without_an_update_has_no_policy_lag(desk: Desk) -> None:
    desk.read_all()

    lag = desk.reports.summary("done").policy_lag
    assert (lag.min, lag.mean, lag.max) == (None, None, None)


def test_without_the_reading_thread_what_is_there_is_polled(desk: Desk) -> None:
    desk.reports.poll()
    assert desk.reports.episodes.episodes == 0

    for number in range(40):
        desk.episodes(number, number)
    desk.reports.poll()
    desk.episodes(7.0)
    desk.reports.poll()

    assert desk.reports.episodes.episodes == 81
    assert desk.reports.progress().return_mean == (38 + 39 + 39 + 7) / 4


def test_rows_tell_lengths_and_speed_over_five_minutes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = desk.status.row("sf-learner-0")
    # 100 steps a second for 100 s, then 10 a second for 200 s.
    for at, trained in ((1, 0), (101, 10_000), (301, 12_000)):
        monkeypatch.setattr(reports_module, "now", lambda at=at: float(at))
        learner.set("run_env_steps", trained)
        learner.set("train_seconds", at)
        desk.reports.sample()
    for length in (5, 10, 30):
        desk.episodes(1.0, length=length)
    desk.reports.poll()

    row = desk.reports.scalars()

    assert (row["perf/fps_10s"], row["perf/fps_60s"], row["perf/fps_300s"]) == (10.0, 10.0, 40.0)
    lengths = [row[f"train/episode_length_{what}"] for what in ("mean", "min", "max")]
    assert lengths == [15.0, 5.0, 30.0]


def test_rows_have_the_same_names_from_the_start(desk: Desk) -> None:
    before = desk.reports.scalars()

    desk.episodes(1.0)
    desk.inbox.put(STATS)
    desk.inbox.put(TIMES)
    desk.reports.poll()

    assert list(desk.reports.scalars()) == list(before)
    assert (before["train/true_objective_mean"], before["train/episode_length_max"]) == (None, None)


def test_extra_statistics_have_windows_of_their_own(desk: Desk) -> None:
    desk.extras("kills", 100.0, 1.0, 2.0)
    desk.extras("kills", 3.0, math.nan, 6.0, actor=1)
    desk.extras("level/coins", 5.0)
    desk.reports.poll()

    row, summary = desk.reports.scalars(), desk.reports.summary("done")

    assert {key: value for key, value in row.items() if key.startswith("train/extra/")} == {
        "train/extra/kills_mean": 3.0,
        "train/extra/kills_min": 1.0,
        "train/extra/kills_max": 6.0,
        "train/extra/level/coins_mean": 5.0,
        "train/extra/level/coins_min": 5.0,
        "train/extra/level/coins_max": 5.0,
    }
    assert summary.episode_extra_stats == {"kills": 3.0, "level/coins": 5.0}


def test_the_true_objective_is_the_return_where_no_env_tells_one(desk: Desk) -> None:
    desk.episodes(1.0, 3.0)
    desk.reports.poll()
    assert desk.reports.scalars()["train/true_objective_max"] == 3.0
    assert desk.reports.progress().true_objective_mean == desk.reports.summary("done").true_objective_mean == 2.0

    desk.extras("true_objective", 0.25, 0.75)
    desk.reports.poll()

    row = desk.reports.scalars()
    assert [row[f"train/true_objective_{what}"] for what in ("mean", "min", "max")] == [0.5, 0.25, 0.75]
    assert desk.reports.progress().true_objective_mean == desk.reports.summary("done").true_objective_mean == 0.5
    assert row["train/episode_return_mean"] == 2.0
    assert [key for key in row if key.startswith("train/extra/")] == []


@pytest.mark.parametrize("metric", ["true_objective", "kills"])
def test_the_best_policy_can_be_judged_by_what_envs_tell(metric: str, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(save_best_metric=metric)
    desk.extras(metric, 1.0, 2.0, 3.0)
    desk.episodes(100.0, 100.0, 100.0, 100.0)
    desk.reports.poll()
    assert desk.reports.window_means() == [None]

    desk.extras(metric, 6.0, 9.0)
    desk.reports.poll()

    assert desk.reports.window_means() == [5.0]
    assert caplog.messages == []


def test_the_return_is_what_reward_means_even_if_an_env_tells_a_statistic_of_that_name() -> None:
    desk = Desk(save_best_metric="reward")

    desk.extras("reward", 1.0, 1.0, 1.0, 1.0)
    desk.episodes(100.0, 100.0, 100.0, 100.0)
    desk.reports.poll()

    assert desk.reports.window_means() == [100.0]


def test_a_metric_that_no_env_tells_is_warned_about_once_and_may_come_later(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(save_best_metric="kills")
    desk.extras("coins", 1.0)
    desk.extras("true_objective", 1.0)
    desk.episodes(1.0, 2.0, 3.0)
    desk.reports.poll()
    assert caplog.messages == []

    for _ in range(3):
        desk.episodes(4.0)
        desk.reports.poll()

    assert caplog.messages == [
        "save_best_metric=kills: none of the first 4 episodes reported it (env reports: reward, coins, "
        "true_objective); no best policy is saved until one does"
    ]
    assert desk.reports.window_means() == [None]
    desk.extras("kills", 1.0, 2.0, 3.0, 4.0)
    desk.reports.poll()
    assert desk.reports.window_means() == [2.5]


def test_a_true_objective_that_no_env_tells_is_the_return_for_good(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(save_best_metric="true_objective")

    desk.episodes(1.0, 2.0, 3.0, 4.0)
    desk.reports.poll()
    desk.extras("true_objective", 0.0, 0.0, 0.0, 0.0)
    desk.reports.poll()

    assert desk.reports.window_means() == [2.5]
    assert caplog.messages == [
        "save_best_metric=true_objective: none of the first 4 episodes reported it (env reports: reward); "
        "the best policy is the one with the highest return"
    ]


def test_what_an_actor_left_out_is_one_warning_for_each_actor(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    for actor in (0, 1, 0, 1):
        desk.inbox.put(ExtrasRefused(actor, "'kills' is no number, but of type str"))
    desk.reports.poll()

    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    for actor, message in enumerate(caplog.messages):
        assert message.startswith(f"sf-actor-{actor}: ")
        assert "'kills' is no number, but of type str" in message


def test_names_beyond_the_limit_are_left_out_with_a_warning(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MAX_STAT_NAMES + 3):
        desk.extras(f"name{number:03}", 1.0)
        desk.reports.poll()

    assert len(desk.reports.summary("done").episode_extra_stats) == 64
    (message,) = caplog.messages
    assert "'name064' is one name too many: there may be 64" in message


def test_rows_tell_the_memory_of_main_and_of_the_children_that_are_there(desk: Desk) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        desk.status.row("sf-actor-1").set("pid", child.pid)
        with_child = {key: value for key, value in desk.reports.scalars().items() if key.startswith("memory/")}
    without = [key for key in desk.reports.scalars() if key.startswith("memory/")]

    assert list(with_child) == ["memory/sf-main_mb", "memory/sf-actor-1_mb", "memory/total_mb"]
    main, actor, total = with_child.values()
    assert main is not None
    assert actor is not None
    assert main > 5
    assert total == main + actor
    assert without == ["memory/sf-main_mb", "memory/total_mb"]


def test_a_resumed_run_tells_where_it_goes_on_from_before_its_learner_can(desk: Desk) -> None:
    desk.episodes(3.0, 5.0, length=7)
    desk.read_all()
    last = dataclasses.replace(desk.reports.summary("interrupted"), best_episode_return_mean=4.0)
    resumed = Resumed(env_steps=1000, train_seconds=20.0, updates=30, best_return=4.0, summary=last)

    reports = ReportCollector(CONFIG, desk.inbox, [], StatusBoard(["sf-learner-0", "sf-actor-0"]), resumed)

    assert reports.progress().env_steps == 1000
    assert reports.scalars()["perf/train_seconds"] == 20.0
    assert reports.scalars()["perf/updates"] == 30
    ended = reports.summary("interrupted")
    assert (ended.env_steps, ended.updates, ended.episodes) == (1000, 30, 2)
    # No episode has ended since: those known before still are the last.
    assert (ended.episode_return_mean, ended.episode_length_mean, ended.true_objective_mean) == (4.0, 7.0, 4.0)
    assert reports.saved_env_steps == 1000
