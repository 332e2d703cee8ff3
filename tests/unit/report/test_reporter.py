"""Progress lines begin with the first env step, and advice is given once for each bottleneck."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Summary
from sfactory.layout import GATEWAY
from sfactory.messages import EpisodesDone
from sfactory.report.bottleneck import Advisor, Load
from sfactory.report.console import Console
from sfactory.report.reporter import Reporter
from sfactory.shared.objects import SharedObjects
from tests.support.parts import VECTOR, small_layout

CONFIG = config_of({"env": "any", "with_tensorboard": False, "report_interval_sec": 0})


class Verdicts:
    """Stands for both meters: one verdict per line."""

    def __init__(self, *verdicts: str | None) -> None:
        self._left: Iterator[str | None] = iter(verdicts)

    def take(self) -> Load:
        return Load({}, {}, {}, next(self._left, None))


class Naming(Advisor):
    """Names the bottleneck."""

    def __init__(self) -> None:
        pass

    def advice(self, load: Load) -> str | None:
        return load.bound_by and f"bound by {load.bound_by}: advice"


def lines_of(
    tmp_path: Path, drive: Callable[[Reporter, SharedObjects], None], config: Config = CONFIG, **layout: object
) -> list[str]:
    shared, stream, advisor = SharedObjects(VECTOR, small_layout(**layout), weight_bytes=8), io.StringIO(), Naming()
    with RunDir.open(tmp_path, "run") as rundir:
        console = Console(None, None, stream)
        reporter = Reporter(config, shared, rundir, Resumed(), console, process_started_at=0.0, advisor=advisor)
        drive(reporter, shared)
        reporter.finish("interrupted", None)
    return [line.partition("] ")[2] for line in stream.getvalue().splitlines()]


def test_there_is_no_line_of_progress_before_the_first_env_step(tmp_path: Path) -> None:
    def drive(reporter: Reporter, shared: SharedObjects) -> None:
        reporter.beat()

    def drive_on(reporter: Reporter, shared: SharedObjects) -> None:
        drive(reporter, shared)
        shared.status.row("sf-actor-0").set("env_steps", 7)
        reporter.beat()

    assert lines_of(tmp_path, drive) == []

    lines = lines_of(tmp_path, drive_on)
    words = [line.split(" ")[0] for line in lines]
    assert words == ["first", "env_steps=0", "env_steps=0", "no"]  # nothing was trained on, but sampled
    assert lines[-1].startswith("no episode ended")
    assert "--max_episode_steps=1000" in lines[-1]


@pytest.mark.parametrize(
    ("env", "by_flag", "by_kwargs"),
    [("my_envs:Mine", 1, 0), ("CartPole-v1", 1, 1), ("vector:CartPole-v1", 0, 1), ("envpool:Ant-v5", 0, 1)],
)
def test_advice_on_episodes_without_end_names_what_the_env_takes(
    env: str, by_flag: int, by_kwargs: int, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, run=dataclasses.replace(CONFIG.run, env=env))

    def drive(reporter: Reporter, shared: SharedObjects) -> None:
        shared.status.row("sf-actor-0").set("env_steps", 7)

    last = lines_of(tmp_path, drive, config)[-1]

    assert last.startswith("no episode ended")
    assert last.count("--max_episode_steps=1000") == by_flag
    assert last.count("--env_kwargs") == by_kwargs


def test_bottlenecks_that_take_turns_are_advised_on_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = Verdicts(None, None, *("learner", "none") * 4, "cores", "learner")
    monkeypatch.setattr("sfactory.report.reporter.LoadMeter", lambda status, cores: verdicts)

    def drive(reporter: Reporter, shared: SharedObjects) -> None:
        shared.status.row("sf-actor-0").set("env_steps", 7)
        for _ in range(10):
            reporter.beat()

    lines = lines_of(tmp_path, drive)

    advice = [line for line in lines if line.startswith("bound by")]
    assert advice == [f"bound by {what}: advice" for what in ("learner", "none", "cores")]
    assert sum("bound_by=learner" in line for line in lines) == 5


def test_without_steps_of_remote_actors_there_is_no_other_line_of_progress(tmp_path: Path) -> None:
    def drive(reporter: Reporter, shared: SharedObjects) -> None:
        for steps in (7, 7, 7, 9, 9):
            shared.status.row(GATEWAY).set("env_steps", steps)
            reporter.beat()

    lines = lines_of(tmp_path, drive, num_actors=1, remote=True)

    # Of 7 steps, of 9, and at the end; then that no episode ended.
    assert [line.split(" ")[0] for line in lines] == ["first", *["env_steps=0"] * 3, "no"]


def test_a_policy_with_other_weights_has_no_objective_until_it_has_new_episodes(tmp_path: Path) -> None:
    objectives: list[float] = []

    def drive(reporter: Reporter, shared: SharedObjects) -> None:
        returns = np.full(CONFIG.report.stats_avg, 7.0)
        shared.actors_to_main.put(EpisodesDone(0, returns, np.full(len(returns), 10), policy=0))
        reporter.reports.poll()
        reporter.beat()
        objectives.append(shared.control.objective(0))
        reporter.reports.forget_episodes(0)
        reporter.beat()
        objectives.append(shared.control.objective(0))
        assert shared.control.episodes(0) == CONFIG.report.stats_avg  # which stay

    lines_of(tmp_path, drive)

    assert objectives == [7.0, float("-inf")]


def test_a_session_from_an_older_checkpoint_writes_no_row_and_keeps_the_summary_until_it_trains(tmp_path: Path) -> None:
    config = config_of({"env": "any", "with_tensorboard": False, "load_checkpoint_kind": "best"})
    shared, summaries, written = SharedObjects(VECTOR, small_layout(), weight_bytes=8), [], []
    resumed = Resumed(env_steps=32, updates=2, summary=Summary("done", 64, 64, 64, 1.0, updates=4))
    for trained in (32, 48):
        with RunDir.open(tmp_path, "run") as rundir:
            reporter = Reporter(config, shared, rundir, resumed, Console(None, None, io.StringIO()), 0.0)
            shared.status.row("sf-learner-0").set("run_env_steps", trained)
            reporter._write_row()
            summaries.append(reporter.finish("interrupted", None).summary)
            written.append((rundir.path / "metrics.jsonl").read_text().splitlines())

    assert written[0] == []
    assert [json.loads(row)["env_steps"] for row in written[1]] == [48, 48]
    assert [(summary.status, summary.env_steps) for summary in summaries] == [("interrupted", 64), ("interrupted", 48)]


def test_the_end_shows_results_and_videos_that_came_after_the_last_look(tmp_path: Path) -> None:
    more = {"opponent_pool": 1, "eval_interval_sec": 60.0, "eval_video": True}
    config = config_of({"env": "any", "with_tensorboard": False, **more})

    def drive(reporter: Reporter, shared: SharedObjects) -> None:
        reporter.beat()
        assert shared.opponents is not None
        shared.opponents.add(np.zeros(8, np.uint8), version=1, env_steps=5)
        shared.opponents.record(0, shared.opponents.newest()[0], 1.0)
        video = tmp_path / "run" / "videos" / "eval_000000000007.mp4"  # of an evaluation that did not end
        video.parent.mkdir()
        video.touch()

    lines = lines_of(tmp_path, drive, config, opponents=1)

    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["match/points"] == 1.0
    assert row["match/rating"] > 0.0
    (opponent,) = json.loads((tmp_path / "run" / "matches.json").read_text())["opponents"]
    assert (opponent["env_steps"], opponent["won"]) == (5, 1.0)
    assert lines == ["video videos/eval_000000000007.mp4"]
