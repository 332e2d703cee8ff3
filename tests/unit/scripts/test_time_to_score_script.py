"""Seconds until a score is reached: scores are found in what a run tells, and the run ends when they suffice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.score_settings import SETTINGS
from scripts.time_to_score import (
    Attempt,
    Score,
    System,
    Tail,
    attempt,
    median_seconds,
    read_row,
    read_told,
    times_as_fast,
)
from sfactory.config.argv import scan
from sfactory.config.flags import all_flags


def test_a_row_of_metrics_is_a_score_once_there_are_enough_episodes() -> None:
    row = {"env_steps": 5, "train/episodes": 99, "train/episode_return_mean": 480.0, "perf/train_seconds": 2.5}

    assert read_row(json.dumps(row)) is None
    assert read_row(json.dumps({**row, "train/episodes": 100})) == Score(480.0, 2.5, 5)


def test_scores_are_found_among_what_a_peer_prints() -> None:
    assert read_told("[10:00:00] Fps is 12") is None
    assert read_told('SCORE {"mean": 20.5, "train_s": 1.0, "env_steps": 7}') == Score(20.5, 1.0, 7)


def test_a_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tail = Tail(path)

    assert tail.lines() == []
    path.write_text("a\nb")
    assert tail.lines() == ["a"]
    path.write_text("a\nbc\nd\n")
    assert tail.lines() == ["bc", "d"]
    assert tail.lines() == []


def telling(*means: float, then: str = "sleep 60") -> System:
    lines = [f'echo \'SCORE {{"mean": {mean}, "train_s": 1.5, "env_steps": 10}}\'' for mean in means]
    return System(lambda seed, folder: ["sh", "-c", "; ".join([*lines, then])], read_told)


def test_a_run_ends_when_it_reaches_the_bar(tmp_path: Path) -> None:
    result = attempt(telling(20.0, 480.0), 1, tmp_path, bar=475.0, limit_s=60.0)

    assert (result.reached, result.train_s, result.env_steps, result.best_mean) == (True, 1.5, 10, 480.0)


def test_a_run_that_does_not_reach_the_bar_in_time_tells_its_best(tmp_path: Path) -> None:
    result = attempt(telling(20.0, 300.0, 200.0), 1, tmp_path, bar=475.0, limit_s=2.0)

    assert result == Attempt(False, None, None, None, 300.0)


def test_a_run_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        attempt(telling(20.0, then="echo no such thing >&2; exit 1"), 1, tmp_path, bar=475.0, limit_s=60.0)


def test_the_median_of_seconds_is_unknown_if_most_were_not_reached() -> None:
    fast, slow = Attempt(True, 10.0, 5.0, 1, 480.0), Attempt(True, 30.0, 20.0, 1, 480.0)
    never = Attempt(False, None, None, None, 100.0)

    assert median_seconds([slow, fast, never], "wall_s") == 30.0
    assert median_seconds([slow, fast], "train_s") == 12.5
    assert median_seconds([never, fast, never], "wall_s") is None


def test_seconds_are_compared_in_the_rounds_in_which_both_reached_the_bar() -> None:
    never = Attempt(False, None, None, None, 100.0)
    ours = [Attempt(True, wall_s, 1.0, 1, 480.0) for wall_s in (2.0, 4.0, 5.0)]
    theirs = [Attempt(True, 20.0, 1.0, 1, 480.0), Attempt(True, 12.0, 1.0, 1, 480.0), never]

    found = times_as_fast({"sfactory local": ours, "SB3": theirs, "Sample Factory 2.1.1": [never] * 3})

    assert found == {"sfactory local": {"SB3": {"median": 6.5, "min": 3.0, "max": 10.0}}}


def test_settings_of_ours_are_read_without_problems() -> None:
    problems = [scan(settings.ours.split(), all_flags()).problems for settings in SETTINGS.values()]

    assert problems == [[] for _ in SETTINGS]
