"""The files of measured rows: curves and facts."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from scripts.drawing import hardware
from scripts.record import write_json
from sfactory.process.command import number
from sfactory.statistics import bootstrap_interval, interquartile_mean

SEEDS = 3  # with fewer an interval says nothing


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


def measurements(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The facts of a row, once for each code and machine, with what the seeds of each have reached. The last is new."""
    before = _earlier_seeds(facts)
    reached = {seed: value for seed, value in facts["reached"].items() if seed not in before}
    newest = {name: value for name, value in facts.items() if name != "earlier"} | {"reached": reached}
    return [*facts.get("earlier", ()), newest]


def _earlier_seeds(facts: Mapping[str, Any]) -> set[str]:
    return {seed for one in facts.get("earlier", ()) for seed in one["reached"]}


def timed(facts: Mapping[str, Any], points: Sequence[Point]) -> list[Point]:
    """The points whose minutes can be compared: those of the newest measurement."""
    before = _earlier_seeds(facts)
    return [point for point in points if str(point.seed) not in before]


def beside(facts: Mapping[str, Any]) -> str:
    """What is said after the minutes of a row. Files from before the mark was written are of runs that were alone."""
    return "" if facts.get("alone", True) else ", beside other work"


def minutes_text(facts: Mapping[str, Any], points: Sequence[Point]) -> str:
    """The minutes of training of a row: the median of its newest seeds."""
    minutes = statistics.median(curve[-1].minutes for curve in curves_of(timed(facts, points)))
    return f"{minutes:.3g}{beside(facts)}"


def where(facts: Mapping[str, Any]) -> str:
    """When, on which machine, and with what seeds of the same code were measured. Files of SB3 name no processor."""
    versions = [f"{name} {facts[name]}" for name in ("stable-baselines3", "torch", "gymnasium") if name in facts]
    code = [f"commit {facts['commit']}"] if "commit" in facts else []
    resumed = [f"seed {seed} in several sessions" for seed in facts.get("resumed", ())]
    return ", ".join([facts["date"], *([hardware(facts)] if "cpu" in facts else []), *versions, *code, *resumed])


def curves_of(points: Sequence[Point]) -> list[list[Point]]:
    """The curve of each seed."""
    return [list(group) for _, group in groupby(points, lambda point: point.seed)]


def iqm_text(scores: Sequence[float]) -> str:
    """The interquartile mean of the scores of one task, and its interval if there are SEEDS scores."""
    mean = number(float(interquartile_mean(scores)))
    if len(scores) < SEEDS:
        return mean
    low, high = bootstrap_interval(scores)
    return f"{mean} [{number(low)}, {number(high)}]"
