"""What is measured over workers and envs, what it comes to, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.draw_scaling import draw, memory_lines, throughput_lines
from scripts.scaling import ENVS, INFERENCE, WORKERS, Cell, Figures, cells, summary
from sfactory.config.resolve import read_command_line


def row(inference: str, workers: int, envs: int, rate: float, actor_mb: float = 14.0) -> dict[str, Any]:
    figures = Figures([rate], [3.0 + workers / 100], [500.0 + workers], {"actor": [actor_mb], "learner": [150.0]})
    if inference == "central":
        figures.private_mb["policy_worker"] = [13.0]
    return figures.row(Cell(inference, workers, envs))


ROWS = [
    row("central", 16, 64, 50_000.0, actor_mb=13.0),
    row("central", 2, 64, 100_000.0),
    row("central", 2, 1024, 400_000.0),
    row("central", 16, 1024, 200_000.0),
    row("local", 2, 1024, 500_000.0, actor_mb=16.0),
]
MEASURED = {"env": "CartPole-v1", "cores": 2, "cpu": "some", "date": "2026-11-22", "cells": ROWS}


def test_layouts_with_a_split_that_has_no_env_are_left_out() -> None:
    assert len(cells(INFERENCE, WORKERS, ENVS)) == 2 * len(WORKERS) * len(ENVS)
    assert cells(INFERENCE, [2], [1]) == [Cell("local", 2, 1)]


def test_all_layouts_are_measured_with_flags_that_hold() -> None:
    for cell in cells(INFERENCE, WORKERS, ENVS):
        config = read_command_line(cell.flags("CartPole-v1"), prog="train").config

        assert config.sampling.num_envs_per_worker == cell.envs
        assert config.sampling.inference == cell.inference


def test_a_cell_is_told_by_the_medians_of_its_rounds() -> None:
    figures = Figures([3.0, 1.0, 2.0], [5.0, 3.0, 4.0], [10.0, 30.0, 20.0], {"actor": [7.0, 9.0, 8.0]})

    assert figures.row(Cell("local", 2, 64)) == {
        "inference": "local",
        "workers": 2,
        "envs": 64,
        "env_steps_per_second": 2.0,
        "first_env_step_s": 4.0,
        "total_pss_mb": 20.0,
        "private_mb": {"actor": 8.0},
        "rounds": {"env_steps_per_second": [3.0, 1.0, 2.0], "first_env_step_s": [5.0, 3.0, 4.0]},
    }


def test_the_summary_compares_two_and_sixteen_workers() -> None:
    assert summary(ROWS) == {
        "central, 2 workers: share of the best rate": 1.0,
        "central, 2 workers: private MB per actor": 14.0,
        "central, 16 workers: share of the best rate": 0.5,
        "central, 16 workers: private MB per actor": 13.5,
        "local, 2 workers: share of the best rate": 1.0,
        "local, 2 workers: private MB per actor": 16.0,
        "2 workers: seconds to the first env step": 3.02,
        "16 workers: seconds to the first env step": 3.16,
    }


def test_throughput_has_a_line_for_each_inference_and_number_of_envs() -> None:
    assert throughput_lines(ROWS) == {
        ("central", 64): [(2, 100_000.0), (16, 50_000.0)],
        ("central", 1024): [(2, 400_000.0), (16, 200_000.0)],
        ("local", 1024): [(2, 500_000.0)],
    }


def test_memory_is_the_median_over_numbers_of_envs() -> None:
    lines = memory_lines(ROWS)

    assert lines["central", "an actor"] == [(2, 14.0), (16, 13.5)]
    assert lines["central", "all processes together"] == [(2, 502.0), (16, 516.0)]
    assert lines["local", "an actor"] == [(2, 16.0)]
    assert ("local", "the policy worker") not in lines


def test_the_picture_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"

    draw(MEASURED, first)
    draw(MEASURED, second)

    text = first.read_text()
    assert text == second.read_text()
    for expected in (
        "throughput",
        "memory",
        "central, 1,024 envs each",
        "an actor to itself",
        "workers",
        "2 cores of some",
    ):
        assert expected in text
