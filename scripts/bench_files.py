"""Room: the JSON files of bench.py. In: one or several. Out: one, with figures made of the runs of all.

It has no command of its own; bench.py and draw_throughput.py read files with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.figures import summary

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
        told = [file[fact] for file in files if fact in file]
        if any(value != told[0] for value in told):
            raise SystemExit(f"error: these do not compare: {fact} is {' and '.join(map(str, told))}")
    workloads: dict[str, dict[str, Any]] = {}
    for file in files:
        for name, workload in file["workloads"].items():
            workloads[name] = _after(workloads[name], workload, name) if name in workloads else dict(workload)
    runs = {name: workload["runs"] for name, workload in workloads.items()}
    facts = {
        "date": ", ".join(sorted({file["date"] for file in files})),
        "rounds": max(run["round"] for each in runs.values() for run in each),
    }
    anew = {name: summarised(workload, files[0]["cores"]) for name, workload in workloads.items()}
    return {**files[0], **facts, "workloads": anew}


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
