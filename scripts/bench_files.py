"""Joins JSON files of bench.py and writes the tables of docs/performance.md from them.

It has no command of its own; bench.py and draw_throughput.py read files with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.figures import ALL, ENV, FULLS, SAMPLES, is_part_of_ceiling, summary
from scripts.record import table
from scripts.rounds import Spread

# What files must agree on to be joined, where they tell it.
_SAME = ("cpu", "instructions", "cores", "torch", "seconds")

Measured = Mapping[str, Any]


def summarised(workload: Measured, cores: int) -> dict[str, Any]:
    """A workload of such a file with figures made of its runs, which had an actor on each core."""
    figures = summary(workload["runs"], cores, cores)
    return {"about": workload["about"], **figures, "commands": workload["commands"], "runs": workload["runs"]}


def joined(files: Sequence[Measured]) -> dict[str, Any]:
    """All workloads of the files; rounds of later files follow those of earlier ones.

    Ends the program unless all was measured on one machine, and each workload with the same flags.
    """
    for fact in _SAME:
        values = [file[fact] for file in files if fact in file]
        if any(value != values[0] for value in values):
            raise SystemExit(f"error: these do not compare: {fact} is {' and '.join(map(str, values))}")
    workloads: dict[str, dict[str, Any]] = {}
    for file in files:
        for name, workload in file["workloads"].items():
            workloads[name] = _after(workloads[name], workload, name) if name in workloads else dict(workload)
    runs = {name: workload["runs"] for name, workload in workloads.items()}
    facts = {
        "date": ", ".join(sorted({file["date"] for file in files})),
        "rounds": max(run["round"] for each in runs.values() for run in each),
    }
    return {
        **files[0],
        **facts,
        "workloads": {name: summarised(workload, files[0]["cores"]) for name, workload in workloads.items()},
    }


def _after(first: Measured, second: Measured, name: str) -> dict[str, Any]:
    """A workload with the runs of both, the second's in later rounds."""
    if _words(first["commands"]) != _words(second["commands"]):
        raise SystemExit(f"error: these do not compare: {name} was measured with other flags")
    last = max(run["round"] for run in first["runs"])
    later = [{**run, "round": last + run["round"]} for run in second["runs"]]
    return {**second, "runs": [*first["runs"], *later]}


def _words(commands: Mapping[str, str]) -> dict[str, list[str]]:
    """The words of each command; flags mean the same in any order."""
    return {name: sorted(command.split()) for name, command in commands.items()}


HEAD = ("", "env steps/s", "of pure simulation", "of the ceiling", "CPU us per env step")


def report_text(name: str, workload: Mapping[str, Any]) -> str:
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


FAMILIES_HEAD = (
    *("family", "env", "steps alone, env steps/s", "sampling, local", "central", "training, local", "central"),
    "us of all cores for a step alone; CPU us of a trained step, local inference",
)


def families_text(workloads: Mapping[str, Measured], cores: int) -> str:
    """One table: shares of the steps that the envs make alone; of training also where its time goes."""
    rows = []
    for name, workload in workloads.items():
        shares, alone = workload["share_of_pure_simulation"], workload["medians"].get(ENV)
        spent = _cpu(workload["cpu_us_per_step"].get(FULLS[0], {}))
        parts = [f"steps alone {_us(1e6 * cores / alone)}"] if alone is not None else []
        all_shares = [_share(shares, measurement) for measurement in (*SAMPLES, *FULLS)]
        rows.append(
            (
                name,
                workload["about"],
                "" if alone is None else f"{alone:,.0f}",
                *all_shares,
                "; ".join(filter(None, (*parts, spent))),
            )
        )
    return table(FAMILIES_HEAD, rows)


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
