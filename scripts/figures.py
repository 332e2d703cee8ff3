"""Computes medians, paired shares, costs and the ceiling from the runs of a bench.

It has no command of its own; bench.py writes it, draw_throughput.py draws it. A ceiling is what all cores together
could do if simulation, forward passes and training were all there is to do and each ran as well as it does alone.
Shares are those of two figures of the same round (rounds.py), and their median.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scripts.rounds import Rounds, Spread, medians, ratio

ENV, LEARN, FORWARD, TRAIN = "env", "learn", "forward", "train"
SAMPLES = ("sample local", "sample central")
FULLS = ("full local", "full central")
OURS = (ENV, *SAMPLES, LEARN, *FULLS)
SIMULATION = "simulation"
ALL = "all"  # kinds of processes together

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


def is_part_of_ceiling(name: str) -> bool:
    """Whether a measurement of that name is one of the model alone."""
    return name.startswith((f"{FORWARD} x", f"{TRAIN} x"))


def is_peer(name: str) -> bool:
    """Whether a measurement of that name is one of another system."""
    return name not in OURS and not is_part_of_ceiling(name)


def cheapest(rates: Sequence[Rate]) -> Rate:
    """The rate whose env steps cost least of the cores."""
    return min(rates, key=lambda rate: rate.core_us)


def ceiling(cores: int, core_us: Mapping[str, float]) -> float:
    """Env steps per second of ``cores`` cores that have all these things to do for each."""
    return cores * 1e6 / sum(core_us.values())


def by_round(runs: Sequence[Run], value: Callable[[Run], float]) -> dict[str, dict[int, float]]:
    """A figure of each run, by measurement and round."""
    rounds: dict[str, dict[int, float]] = {}
    for run in runs:
        rounds.setdefault(run["measurement"], {})[run["round"]] = float(value(run))
    return rounds


def summary(runs: Sequence[Run], cores: int, processes: int) -> dict[str, Any]:
    """Medians of all measurements, CPU time by kind, paired shares, and the ceiling once all of it was measured."""
    rates = by_round(runs, lambda run: run["env_steps_per_second"])
    middle = medians({name: list(rounds.values()) for name, rounds in rates.items()})
    result: dict[str, Any] = {
        "medians": middle,
        "cpu_us_per_step": _cpu_times(runs),
        "share_of_pure_simulation": _shares_of_simulation(runs),
    }
    faster = _faster(rates)
    if faster:
        result["times_as_fast"] = faster
    parts = {what: _rates_of(what, middle) for what in (FORWARD, TRAIN)}
    if ENV in rates and all(parts.values()):
        # With how many threads the model alone is cheapest by the medians: so many in all rounds.
        best = {what: cheapest(found).threads for what, found in parts.items()}
        alone = {SIMULATION: rates[ENV], **{what: rates[ceiling_name(what, count)] for what, count in best.items()}}
        result |= _ceiling(rates, alone, {SIMULATION: min(processes, cores), **best}, cores)
    return result


def _ceiling(
    rates: Mapping[str, Rounds], alone: Mapping[str, Rounds], threads: Mapping[str, int], cores: int
) -> dict[str, Any]:
    """The ceilings of the rounds in which all parts were measured ``alone``, and what share training reached of each.

    ``threads``: how many each part had. Nothing if there is no such round.
    """
    rounds = sorted(set.intersection(*(set(part) for part in alone.values())))
    if not rounds:
        return {}
    costs = [{what: Rate(threads[what], part[round_]).core_us for what, part in alone.items()} for round_ in rounds]
    limits = {round_: ceiling(cores, cost) for round_, cost in zip(rounds, costs, strict=True)}
    shares = {name: ratio(rates[name], limits) for name in FULLS if name in rates}
    found = {
        "env_steps_per_second": round(statistics.median(limits.values()), 1),
        "core_us_per_step": {what: round(statistics.median(cost[what] for cost in costs), 4) for what in alone},
        "threads": threads,
        "share_reached": {name: share.to_json() for name, share in shares.items() if share is not None},
    }
    return {"ceiling": found}


def _shares_of_simulation(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Of sampling and of training: each run's share of the pure simulation that it had measured just before."""
    of_runs = [run for run in runs if run["measurement"] in (*SAMPLES, *FULLS) and "percent_of_pure_simulation" in run]
    shares = by_round(of_runs, lambda run: run["percent_of_pure_simulation"] / 100)
    return {name: Spread.of(rounds.values()).to_json() for name, rounds in shares.items()}


def _faster(rates: Mapping[str, Rounds]) -> dict[str, dict[str, dict[str, float]]]:
    """How many times as fast full training is as each peer, by layout and peer."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for ours in FULLS:
        for peer in filter(is_peer, rates):
            times = ratio(rates.get(ours, {}), rates[peer])
            if times is not None:
                found.setdefault(ours, {})[peer] = times.to_json()
    return found


def _cpu_times(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """By measurement, the median of each kind of processes, and of all together."""
    series: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        costs: Mapping[str, float] = run.get("cpu_us_per_step", {})
        for kind, cost in {**costs, ALL: sum(costs.values())}.items() if costs else ():
            series.setdefault(run["measurement"], {}).setdefault(kind, []).append(cost)
    return {name: {kind: round(cost, 4) for kind, cost in medians(kinds).items()} for name, kinds in series.items()}


def _rates_of(what: str, rates: Mapping[str, float]) -> list[Rate]:
    prefix = ceiling_name(what, 0).removesuffix("0")
    return [Rate(int(name.removeprefix(prefix)), rate) for name, rate in rates.items() if name.startswith(prefix)]
