"""Writes the tables of docs/results.md from learning curves that draw_curves.py collected.

    python scripts/results_table.py docs/results/breakout.json --bar 10

For each label and each of its runs, in the order in which they were collected: the best value, and the env steps after
which the bar was reached first. Values are those of the curves in the file, of which there are some hundred over a run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.draw_curves import Curve, curves_of
from scripts.record import table


def steps_to(bar: float, curve: Curve) -> float | None:
    """The env steps of the first point that is at the bar or above; None if there is none."""
    return next((step for step, value in zip(*curve, strict=True) if value >= bar), None)


def row(label: str, curves: Sequence[Curve], bar: float) -> list[str]:
    """One line of the table."""
    best = [f"{max(curve.values):.1f}" for curve in curves]
    reached = [steps_to(bar, curve) for curve in curves]
    steps = ["not reached" if step is None else f"{step:,.0f}" for step in reached]
    # Those that were not reached take longer than any that were.
    median = statistics.median_high([float("inf") if step is None else step for step in reached])
    return [label, ", ".join(best), ", ".join(steps), "not reached" if median == float("inf") else f"{median:,.0f}"]


def report_text(labels: Mapping[str, Any], bar: float) -> str:
    """The table of all labels."""
    head = ["", "best mean of each run", f"env steps until the mean is {bar:g}", "their median"]
    return table(head, [row(label, curves_of(labelled), bar) for label, labelled in labels.items()])


def main() -> None:
    """Read the command line, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", type=Path)
    parser.add_argument("--bar", type=float, required=True)
    given = parser.parse_args()
    print(report_text(json.loads(given.curves.read_text()), given.bar))


if __name__ == "__main__":
    main()
