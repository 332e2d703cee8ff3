"""Room: the tables of docs/performance.md out of a bench. In: a workload of bench.py's JSON. Out: Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scripts.figures import ALL, is_part_of_ceiling
from scripts.markdown import table
from scripts.ratios import Spread

HEAD = ("", "env steps/s", "of pure simulation", "of the ceiling", "CPU us per env step")


def told(name: str, workload: Mapping[str, Any]) -> str:
    """Medians over rounds; of shares the bounds, too, and of CPU time the kinds of processes that it went to."""
    rates: Mapping[str, float] = workload["medians"]
    ceiling: Mapping[str, Any] = workload.get("ceiling", {})
    rows = [
        (
            measurement,
            f"{rates[measurement]:,.0f}",
            _share(workload["share_of_pure_simulation"], measurement),
            _share(ceiling.get("share_reached", {}), measurement),
            _cpu(workload["cpu_us_per_step"].get(measurement, {})),
        )
        for measurement in rates
        if not is_part_of_ceiling(measurement)
    ]
    if ceiling:
        rows.append(("ceiling", f"{ceiling['env_steps_per_second']:,.0f}", "", "", _parts(ceiling)))
    times = [
        f"{ours}: {Spread.from_json(spread).as_times()} as fast as {peer}"
        for ours, peers in workload.get("times_as_fast", {}).items()
        for peer, spread in peers.items()
    ]
    return "\n\n".join([f"**{name}**: {workload['about']}", table(HEAD, rows), *times])


def _share(shares: Mapping[str, Mapping[str, float]], measurement: str) -> str:
    return Spread.from_json(shares[measurement]).as_share() if measurement in shares else ""


def _cpu(costs: Mapping[str, float]) -> str:
    """All processes together, and in brackets those that took a hundredth of it or more."""
    if not costs:
        return ""
    kinds = {kind: cost for kind, cost in costs.items() if kind != ALL and cost >= 0.01 * costs[ALL]}
    return f"{_us(costs[ALL])} ({', '.join(f'{kind} {_us(cost)}' for kind, cost in kinds.items())})"


def _parts(ceiling: Mapping[str, Any]) -> str:
    """What an env step costs of the cores alone, and the number of threads with which that was measured."""
    parts = ceiling["core_us_per_step"].items()
    return ", ".join(f"{what} {_us(cost)} (x{ceiling['threads'][what]})" for what, cost in parts)


def _us(cost: float) -> str:
    """Three figures, or whole microseconds."""
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
