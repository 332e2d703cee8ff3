"""The files of measured rows: curves and facts, and the interquartile mean of what the seeds reached."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scripts.record import write_json

_RESAMPLES = 10_000


class Point(NamedTuple):
    """A point of the curve of a seed, and a line of a row's CSV. minutes: of training, without the start."""

    seed: int
    env_steps: int
    minutes: float
    value: float


def read_row(name: str, folder: Path) -> tuple[dict[str, Any], list[Point]]:
    """The facts and the points of a row; both are empty where it was not run."""
    facts, curves = folder / f"{name}.json", folder / f"{name}.csv"
    if not (facts.exists() and curves.exists()):
        return {}, []
    _, *lines = csv.reader(curves.read_text().splitlines())
    points = [Point(int(line[0]), int(line[1]), float(line[2]), float(line[3])) for line in lines]
    return json.loads(facts.read_text()), points


def write_row(name: str, facts: Mapping[str, Any], points: Sequence[Point], folder: Path) -> None:
    """Write the facts and the points of a row."""
    write_json(folder / f"{name}.json", facts)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("seed", "env_steps", "minutes", "return"), *points])


def curves_of(points: Sequence[Point]) -> list[list[Point]]:
    """The curve of each seed."""
    return [list(group) for _, group in groupby(points, lambda point: point.seed)]


def iqm(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The interquartile mean of the last axis: without the lowest and the highest quarter of its values, rounded down.

    Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice" (rliable).
    """
    cut = scores.shape[-1] // 4
    means: npt.NDArray[np.float64] = np.sort(scores)[..., cut : scores.shape[-1] - cut].mean(-1)
    return means


def iqm_interval(scores: npt.NDArray[np.float64], resamples: int = _RESAMPLES) -> tuple[float, float]:
    """The 95% interval of the interquartile mean of scores [tasks, runs], as in the same paper.

    It spans the percentiles of a stratified bootstrap: the runs of each task are drawn again from its own.
    """
    tasks, runs = scores.shape
    drawn = np.random.default_rng(0).integers(runs, size=(resamples, tasks, runs))
    again = np.take_along_axis(scores[None], drawn, axis=2).reshape(resamples, -1)
    low, high = np.percentile(iqm(again), [2.5, 97.5])
    return float(low), float(high)


def iqm_text(scores: Sequence[float]) -> str:
    """The interquartile mean of the scores of one task, and its interval."""
    low, high = iqm_interval(np.array([scores]))
    return f"{figure(float(iqm(np.array(scores))))} [{figure(low)}, {figure(high)}]"


def figure(value: float) -> str:
    """A return, as the table shows it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
