"""Rows of the table of results: their commands, the files that made-up runs leave, the intervals, and the page."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts import reproduce
from scripts.command import Output
from scripts.draw_curves import POINTS
from scripts.proc import busy_cores, core_ticks
from scripts.reproduce import Runs
from scripts.results_files import Point, measurements, read_row, timed, write_row
from scripts.results_page import BEGIN, END, PAGE, RESULTS, beside_envpool, line_of, outcome, section, write_page
from scripts.rows import GREEDY, IN_WORDS, ROWS, SOURCES, Success
from sfactory.config.argv import scan
from sfactory.config.flags import all_flags
from sfactory.config.resolve import read_command_line
from sfactory.errors import ConfigError
from sfactory.statistics import bootstrap_band, bootstrap_interval, interquartile_mean, probability_of_improvement

FACTS = {"date": "2026-11-27", "cpu": "X", "cores": 2, "torch": "2", "gymnasium": "1", "commit": "abc"}


def test_commands_of_rows_can_be_read_and_their_figures_have_a_source(tmp_path: Path) -> None:
    for row in ROWS.values():
        command = Runs(row, tmp_path).train(1)[3:]
        assert scan(command, all_flags()).problems == []
        # The package of the env may be missing.
        assert [problem for problem in problems_of(command) if not problem.startswith("--env=")] == []
        assert row.metric in IN_WORDS
        assert set(re.findall(r"\(([^)]*)\)", row.peer)) <= SOURCES.keys()
        assert row.peer == "" or row.peer.endswith(")")


def problems_of(command: Sequence[str]) -> list[str]:
    """Of a command line, flags and their rules."""
    try:
        read_command_line(command)
    except ConfigError as error:
        return list(error.problems)
    return []


class Trainer:
    """Stands in for the commands: a run leaves made-up metrics, and seeds of ``failing`` end early."""

    def __init__(self, rows: int) -> None:
        self.rows, self.failing, self.seeds = rows, set[str](), list[str]()
        self.behaviors: list[str] = []
        self.ends_as = "interrupted"  # a run of ``failing``

    def __call__(self, argv: Sequence[str], cwd: Path, limit_s: float) -> Output:
        given = dict(word.split("=", 1) for word in argv[3:])
        if argv[2] == "sfactory.enjoy":
            assert given["--eval_deterministic"] == "True"
            assert given["--max_num_episodes"] == "100"
            return Output('{"true_objective_mean": 495.00001}', "")
        folder = cwd / given["--train_dir"] / given["--experiment"]
        folder.mkdir(parents=True, exist_ok=True)
        self.behaviors.append(given["--restart_behavior"])
        ends_as = self.ends_as if given["--seed"] in self.failing else "done"
        (folder / "run.json").write_text(json.dumps({"status": ends_as}))
        if given["--seed"] in self.failing:
            raise SystemExit("error: it failed")
        self.seeds.append(given["--seed"])
        steps = int(given["--train_for_env_steps"])
        rows: list[dict[str, Any]] = [{"env_steps": 0, "train/true_objective_mean": None}]
        for at in range(1, self.rows + 1):
            value = 900.0 if at == 2 else at / 10
            when = {"env_steps": steps * at // self.rows, "perf/train_seconds": at * 6.0}
            rows.append({**when, "train/true_objective_mean": value})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Output(json.dumps({"env_steps": steps}), "")


def test_seeds_are_written_after_each_run_and_failed_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, results, runs = Trainer(1000), tmp_path / "results", Runs(ROWS["cartpole"], tmp_path / "runs")
    monkeypatch.setattr(reproduce, "run", trainer)
    monkeypatch.setattr(reproduce, "busy_cores", lambda _: 0.0)
    trainer.failing = {"2"}
    with pytest.raises(SystemExit, match="it failed"):
        reproduce.reproduce(runs, [1, 2], results)

    facts, points = read_row("cartpole", results)
    assert facts["reached"] == {"1": 495.0}
    assert "--seed=SEED" in facts["command"]
    assert {"cpu", "cores", "instructions", "torch", "commit", "date"} <= facts.keys()
    assert POINTS / 2 < len(points) <= POINTS + 2
    assert points[-1] == Point(1, 100_000, 100.0, 100.0)
    assert Point(1, 200, 0.2, 900.0) in points  # the best

    trainer.failing = set()
    assert facts["alone"]
    loads = iter([0.1, 1.5, 0.1])  # before the second seed, after it, and before the third
    monkeypatch.setattr(reproduce, "busy_cores", lambda _: next(loads))
    reproduce.reproduce(runs, [1, 2], results)
    assert trainer.seeds == ["1", "2"]
    assert trainer.behaviors == ["restart", "restart", "resume"]
    facts, _ = read_row("cartpole", results)
    assert facts["reached"].keys() == {"1", "2"}
    assert facts["resumed"] == [2]
    assert not facts["alone"]
    assert "seed 2: beside other work, which kept 1.5 cores busy" in capsys.readouterr().out

    trainer.failing = {"3"}
    with pytest.raises(SystemExit, match="it failed"):
        reproduce.reproduce(runs, [3], results)
    trainer.failing = set()
    monkeypatch.setattr(reproduce, "commit", lambda: "another")
    monkeypatch.setattr(reproduce, "busy_cores", lambda _: 0.0)
    reproduce.reproduce(runs, [3], results)
    assert trainer.behaviors[-1] == "restart"  # what was interrupted is of other code
    assert sorted(path.name for path in runs.train_dir.glob("*.json")) == []
    facts, points = read_row("cartpole", results)
    assert "resumed" not in facts
    assert facts["alone"]
    assert facts["reached"].keys() == {"3"} == {str(point.seed) for point in points}
    assert f"drops seeds 1, 2 of {results}, which differ in commit\n" in capsys.readouterr().out

    reproduce.reproduce(runs._replace(alone=False), [3], results)
    assert read_row("cartpole", results) == ({**facts, "alone": False}, points)
    assert trainer.seeds == ["1", "2", "3"]

    for commit, seeds in (("third", [3]), ("third", [3, 4]), ("fourth", [5])):
        monkeypatch.setattr(reproduce, "commit", lambda commit=commit: commit)
        reproduce.reproduce(runs._replace(add=True), seeds, results)
    assert f"keeps seeds 4 of {results}, which differ in commit\n" in capsys.readouterr().out
    facts, points = read_row("cartpole", results)
    assert [(one["commit"], [*one["reached"]], one["alone"]) for one in measurements(facts)] == [
        ("another", ["3"], False),
        ("third", ["4"], True),
        ("fourth", ["5"], True),
    ]
    assert {point.seed for point in points} == {3, 4, 5}
    assert {point.seed for point in timed(facts, points)} == {5}
    lines = section(results).splitlines()
    assert [line.rpartition(", ")[2] for line in lines if "`cartpole` (seed " in line] == [
        f"commit {commit}: `cartpole` (seed {seed})." for commit, seed in (("another", 3), ("third", 4), ("fourth", 5))
    ]


@pytest.mark.parametrize(
    ("ends_as", "behavior", "resumed"), [("interrupted", "resume", [1]), ("failed", "restart", None)]
)
def test_a_seed_that_was_interrupted_goes_on_with_its_mark_and_one_that_failed_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_as: str, behavior: str, resumed: list[int] | None
) -> None:
    trainer, results, runs = Trainer(10), tmp_path / "results", Runs(ROWS["cartpole"], tmp_path / "runs")
    trainer.failing, trainer.ends_as = {"1"}, ends_as
    monkeypatch.setattr(reproduce, "run", trainer)
    monkeypatch.setattr(reproduce, "busy_cores", lambda _: 0.0)
    with pytest.raises(SystemExit, match="it failed"):
        reproduce.reproduce(runs._replace(alone=False), [1], results)

    trainer.failing = set()
    reproduce.reproduce(runs, [1], results)

    facts, _ = read_row("cartpole", results)
    assert trainer.behaviors == ["restart", behavior]
    assert facts.get("resumed") == resumed
    assert facts["alone"] == (ends_as == "failed")


def test_rows_are_published_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "run", Trainer(10))
    monkeypatch.setattr(reproduce, "busy_cores", lambda _: 0.0)
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path / "published")
    words = ["reproduce.py", "cartpole", "--seeds", "1", "--train_dir", str(tmp_path)]
    for flags, published in ((), False), (("--publish",), True):
        monkeypatch.setattr(sys, "argv", [*words, *flags])
        reproduce.main()
        assert read_row("cartpole", tmp_path / "results")[0]["reached"] == {"1": 495.0}
        assert (tmp_path / "published").exists() == published
        assert "docs/results/rows: not run\n" in capsys.readouterr().out


def test_busy_cores_are_those_of_the_process_that_did_not_idle() -> None:
    of_others = "cpu10 9 9 9 9 9 9 9 9 0 0\nintr 5\n"
    text = f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 1 1\ncpu1 10 0 0 30 0 0 0 0 0 0\n{of_others}"
    assert core_ticks(text, {0, 1}) == (27 + 10, 72 + 40)
    assert 0 <= busy_cores(0.05) <= len(os.sched_getaffinity(0))


def test_outcomes_name_the_bar_the_figures_of_others_and_the_results_on_record() -> None:
    line = outcome(ROWS["cartpole"], {"1": 500.0, "2": 480.0}, {**FACTS, "reached": {"1": 499.0}})
    assert "seeds 1, 2: 500, 480; bar: 490, greedy return, reached by 1 of 2; published: 500 ± 0 (RL Zoo, http" in line
    assert line.endswith("docs/results/rows: 499 (2026-11-27, 2 cores of X, commit abc)")
    assert "no figure decides; published: no figure" in outcome(ROWS["nethack"], {"1": 5.0}, {})


def test_training_returns_are_those_at_the_end_and_short_runs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(ROWS["acrobot"], tmp_path)
    assert runs.row.metric != GREEDY
    monkeypatch.setattr(reproduce, "run", Trainer(10))
    assert reproduce.measure(runs, 1)[1] == 1.0

    monkeypatch.setattr(reproduce, "run", lambda *_, **__: Output('{"env_steps": 10}', ""))
    with pytest.raises(SystemExit, match="10 of 500000 env steps"):
        reproduce.measure(runs, 1)


def test_interquartile_mean_and_its_interval_are_those_of_all_resamples() -> None:
    assert interquartile_mean([9.0, 1.0, 2.0, 3.0, 100.0]) == pytest.approx(14 / 3)  # 1 and 100 are left out
    assert interquartile_mean([1.0, 2.0, 6.0]) == 3.0
    tasks = [[1.0, 4.0, 9.0], [-3.0, 0.5, 2.0]]

    means = []
    for drawn in itertools.product(*(itertools.product(task, repeat=3) for task in tasks)):
        middle = sorted(value for task in drawn for value in task)[1:-1]
        means.append(sum(middle) / len(middle))

    assert bootstrap_interval(tasks, 40_000) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.1)
    assert bootstrap_interval([5.0]) == (5.0, 5.0)
    low, high = bootstrap_band(np.array([tasks, np.add(tasks, 2.0)]), 40_000)
    assert low[1] - low[0] == pytest.approx(2.0)
    assert (low[0], high[0]) == bootstrap_interval(tasks, 40_000)
    assert probability_of_improvement([1.0, 2.0], [0.0, 2.0]) == (1 + 0 + 1 + 0.5) / 4


def test_lines_count_the_seeds_that_reach_the_bar() -> None:
    points = [Point(seed, 1000, minutes, 0.5) for seed, minutes in ((1, 1.0), (2, 3.0), (3, 2.0))]
    facts = {**FACTS, "reached": {"1": 0.5, "2": 0.6, "3": 0.61}}

    assert line_of(ROWS["memoryless"], facts, points)[4:7] == ["0.5, 0.6, 0.61: 2 of 3", "0.57 [0.5, 0.61]", "2"]
    assert line_of(ROWS["memory"], facts, points)[4].endswith(": 0 of 3")
    assert line_of(ROWS["nethack"], facts, points)[4] == "0.5, 0.6, 0.61"
    assert line_of(ROWS["ant"], {}, [])[4] == "not run"


def test_only_the_table_of_a_page_is_written_and_always_the_same(tmp_path: Path) -> None:
    page, folder = tmp_path / "results.md", tmp_path / "rows"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(page, folder)
    assert page.read_text().count("| not run |") == len(ROWS)

    points = [Point(seed, at * 1000, at / 10, at * 5.0) for seed in (1, 2) for at in range(20)]
    write_row("cartpole", {**FACTS, "reached": {"1": 500.0, "2": 480.0}}, points, folder)
    write_row("nethack", {**FACTS, "reached": {"1": 10.0}}, points[:20], folder)
    written = []
    for _ in range(2):
        write_page(page, folder)
        written.append([page.read_text(), *(file.read_text() for file in sorted(folder.glob("*.svg")))])

    assert written[0] == written[1]
    text, *charts = written[0]
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "500, 480: 1 of 2 | 490 |" in text
    assert ": 0 reached by all of their seeds (0 of these with fewer than 3 seeds), 1 by some, 0 by none; 1 m" in text
    assert f"; {len(ROWS) - 2} not run." in text
    assert "| `--env=CartPole-v1 --train_for_env_steps=100000` |" in text
    assert "2026-11-27, 2 cores of X, torch 2, gymnasium 1, commit abc" in text
    assert len(charts) == 2
    assert all("cartpole" in chart and "nethack" in chart for chart in charts)

    slower = [Point(1, at * 1000, at / 5, at * 5.0) for at in range(11)]  # up to 50, at half the speed
    write_row("cartpole", {"stable-baselines3": "2.9", "date": "2026-11-26"}, slower, tmp_path / "sb3")
    write_page(page, folder)
    assert "| `cartpole` | 50 | 1 | 2 | 2.0 | 50 | 2, 1 | 2.9 | abc |" in page.read_text()

    write_row("parity_hopper_async", {**FACTS, "reached": {"1": 95.0, "2": 95.0}}, points, folder)
    write_row("parity_hopper", {"stable-baselines3": "2.9", "date": "2026-11-26"}, slower, tmp_path / "sb3")
    write_page(page, folder)
    assert "| Hopper-v5 | SB3 | 50 | 50 | 2 |" in page.read_text()
    assert "| Hopper-v5 | asynchronous | 95, 95 | 95 | 1.9 |" in page.read_text()
    assert "Hopper-v5" in (folder / "parity.svg").read_text()

    page.write_text(BEGIN)
    with pytest.raises(SystemExit, match="needs the lines"):
        write_page(page, folder)


def test_returns_with_envpool_stand_beside_those_without_and_the_page_says_whether_they_overlap(tmp_path: Path) -> None:
    for name, reached in (("breakout_2m", [1.0, 2.0, 3.0]), ("breakout_envpool", [3.0, 4.0])):
        write_row(name, {**FACTS, "reached": dict(enumerate(reached))}, [Point(0, 1000, 1.0, 1.0)], tmp_path)
    assert beside_envpool(tmp_path) == []  # two seeds have no interval

    for reached, overlap in (([2.9, 4.0, 9.0], "yes"), ([3.1, 4.0, 9.0], "no"), ([0.1, 0.2, 0.9], "no")):
        facts = {**FACTS, "reached": dict(enumerate(reached))}
        write_row("breakout_envpool", facts, [Point(0, 1000, 1.0, 1.0)], tmp_path)
        shown = beside_envpool(tmp_path)[-1].splitlines()[-1]
        assert shown.startswith(
            "| `breakout_2m`: atari_breakout | `breakout_envpool`: envpool:Breakout-v5 | 2 [1, 3] | "
        )
        assert shown.endswith(f"| {overlap} |")


def test_page_of_results_is_that_of_the_files_and_has_the_commands_that_were_run() -> None:
    assert section(RESULTS) in PAGE.read_text(encoding="utf-8")

    for name, row in ROWS.items():
        ran = read_row(name, RESULTS)[0].get("command")
        assert ran is None or shlex.join(row.words()) in ran


def test_episodes_that_earn_a_reward_are_successes() -> None:
    assert [Success().on_episode(0, 0, {"return": earned}, {})["success"] for earned in (0.0, 0.9)] == [0.0, 1.0]
