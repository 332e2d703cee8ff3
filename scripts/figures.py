"""What follows from the rates of a bench: medians, costs in core-microseconds, the ceiling that the machine allows.

It has no command of its own; bench.py writes it, draw_throughput.py draws it. A ceiling is what all cores together
could do if simulation, forward passes and training were all there is to do and each ran as well as it does alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scripts.measuring import medians

ENV, FORWARD, TRAIN = "env", "forward", "train"
SAMPLES = ("sample local", "sample central")
FULLS = ("full local", "full central")

Run = Mapping[str, Any]


class Rate(NamedTuple):
    """Env steps per second that ``threads`` threads (or processes) reach together."""

    threads: int
    steps_per_second: float

    @property
    def core_us(self) -> float:
        """Core-microseconds per env step."""
        return 1e6 * self.threads / self.steps_per_second


def ceiling_name(what: str, threads: int) -> str:
    """Name of the measurement of ``what`` (FORWARD or TRAIN) with so many threads."""
    return f"{what} x{threads}"


def cheapest(rates: Sequence[Rate]) -> Rate:
    """The rate whose env steps cost least of the cores."""
    return min(rates, key=lambda rate: rate.core_us)


def ceiling(cores: int, core_us: Mapping[str, float]) -> float:
    """Env steps per second of ``cores`` cores that have all these things to do for each."""
    return cores * 1e6 / sum(core_us.values())


def summary(runs: Sequence[Run], cores: int, processes: int) -> dict[str, Any]:
    """Medians of all measurements, CPU time by kind, and the ceiling, once everything for it was measured."""
    rates = medians(_series(runs, lambda run: run["env_steps_per_second"]))
    result: dict[str, Any] = {"medians": rates, "cpu_us_per_step": _cpu_times(runs)}
    costs = {what: _rates_of(what, rates) for what in (FORWARD, TRAIN)}
    if ENV not in rates or not all(costs.values()):
        return result
    used = {
        "simulation": Rate(min(processes, cores), rates[ENV]),
        **{what: cheapest(found) for what, found in costs.items()},
    }
    core_us = {what: rate.core_us for what, rate in used.items()}
    limit = ceiling(cores, core_us)
    result["ceiling"] = {
        "env_steps_per_second": round(limit, 1),
        "core_us_per_step": {what: round(cost, 4) for what, cost in core_us.items()},
        "threads": {what: rate.threads for what, rate in used.items()},
        "share_reached": {name: round(rates[name] / limit, 4) for name in FULLS if name in rates},
    }
    return result


def _series(runs: Sequence[Run], value: Any) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {}
    for run in runs:
        series.setdefault(run["measurement"], []).append(float(value(run)))
    return series


def _cpu_times(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """By measurement, the median of each kind of processes."""
    series: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for kind, cost in run.get("cpu_us_per_step", {}).items():
            series.setdefault(run["measurement"], {}).setdefault(kind, []).append(cost)
    return {measurement: medians(kinds) for measurement, kinds in series.items()}


def _rates_of(what: str, rates: Mapping[str, float]) -> list[Rate]:
    prefix = ceiling_name(what, 0).removesuffix("0")
    return [Rate(int(name.removeprefix(prefix)), rate) for name, rate in rates.items() if name.startswith(prefix)]
