"""Learning curves for the docs: thin the metrics of runs into a small file of the repository, and draw such files.

    python scripts/draw_curves.py collect train_dir/breakout "seed 1" --into docs/results/breakout.json
    python scripts/draw_curves.py collect train_dir/plain_1 train_dir/plain_2 train_dir/plain_3 "plain" \\
        --metric train/true_objective_mean --into docs/results/breakout.json
    python scripts/draw_curves.py draw docs/results/breakout.json --bar 10 --title "Breakout: mean game score"

``collect`` adds the curves of all given runs, one for each seed, under one label (replacing what has that name);
``draw`` writes an SVG beside the file. The runs of a label are drawn as one line, their median, in a band from the
least to the greatest of them. Drawing needs matplotlib: pip install -e '.[plot]'
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.drawing import pyplot, save
from sfactory.results.runs import Run

POINTS = 120
RETURN, ENV_STEPS = "train/episode_return_mean", "env_steps"


class Curve(NamedTuple):
    """One run: values over env steps, which grow."""

    env_steps: Sequence[float]
    values: Sequence[float]

    def at(self, step: float) -> float:
        """The value on the straight line between the points around ``step``; beyond the ends that of the end."""
        right = bisect_right(self.env_steps, step)
        if right in (0, len(self.env_steps)):
            return self.values[min(right, len(self.env_steps) - 1)]
        begin, end = self.env_steps[right - 1 : right + 1]
        share = (step - begin) / (end - begin)
        return (1 - share) * self.values[right - 1] + share * self.values[right]


class Band(NamedTuple):
    """Several runs together, at the same env steps."""

    env_steps: list[float]
    least: list[float]
    median: list[float]
    most: list[float]


def kept(values: Sequence[float]) -> list[int]:
    """The indices of at most POINTS points and two more: the last, and the (first) best."""
    step = max(1, -(-len(values) // POINTS))
    return sorted({*range(0, len(values), step), len(values) - 1, values.index(max(values))})


def rows_of(run: Path, metric: str) -> list[Mapping[str, Any]]:
    """The rows of the metrics in a run's folder that know ``metric``, less those that a session undid by resuming."""
    known = [row for row in Run(run).rows if row.get(metric) is not None]
    if not known:
        raise SystemExit(f"error: {run}/metrics.jsonl has no {metric}")
    return known


def read_run(run: Path, metric: str, steps: str = ENV_STEPS) -> Curve:
    """The curve of a run's folder: ``metric`` over ``steps``, both names of its metrics."""
    rows = rows_of(run, metric)
    thinned = [rows[index] for index in kept([row[metric] for row in rows])]
    return Curve([row[steps] for row in thinned], [round(row[metric], 3) for row in thinned])


def collect(runs: Sequence[Path], label: str, metric: str, into: Path, steps: str = ENV_STEPS) -> None:
    """Add the curves of ``runs``, over ``steps``, to those in ``into``."""
    known = json.loads(into.read_text()) if into.exists() else {}
    known[label] = {"metric": metric, "runs": [read_run(run, metric, steps)._asdict() for run in runs]}
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps(known, indent=1) + "\n")


def curves_of(labelled: Mapping[str, Any]) -> list[Curve]:
    """All runs of one label of such a file."""
    return [Curve(**run) for run in labelled["runs"]]


def band(curves: Sequence[Curve]) -> Band:
    """All runs at every env step that one of them has, as far as all of them go."""
    end = min(curve.env_steps[-1] for curve in curves)
    begin = max(curve.env_steps[0] for curve in curves)
    steps = sorted({step for curve in curves for step in curve.env_steps if begin <= step <= end})
    values = [[curve.at(step) for curve in curves] for step in steps]
    return Band(steps, [*map(min, values)], [*map(statistics.median, values)], [*map(max, values)])


def draw(path: Path, title: str, bar: float | None) -> Path:
    """Draw all curves of a file; returns the SVG's path."""
    plot = pyplot(font_size=9)
    figure, axes = plot.subplots(figsize=(7.2, 3.6), layout="constrained")
    for label, labelled in json.loads(path.read_text()).items():
        together = band(curves_of(labelled))
        thousands = [steps / 1000 for steps in together.env_steps]
        (line,) = axes.plot(thousands, together.median, label=label, linewidth=1.2)
        if len(labelled["runs"]) > 1:
            axes.fill_between(thousands, together.least, together.most, color=line.get_color(), alpha=0.2, linewidth=0)
    if bar is not None:
        axes.axhline(bar, color="black", linewidth=0.8, linestyle=":", label=f"bar: {bar:g}")
    axes.set(title=title, xlabel="env steps (thousands)", ylabel="mean of the last 100 episodes")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    target = path.with_suffix(".svg")
    save(figure, target)
    return target


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("collect")
    adding.add_argument("run", type=Path, nargs="+")
    adding.add_argument("label")
    adding.add_argument("--metric", default=RETURN)
    adding.add_argument("--steps", default=ENV_STEPS, help="the metric to go by, one policy's own for instance")
    adding.add_argument("--into", type=Path, required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("--title", default="")
    drawing.add_argument("--bar", type=float)
    given = parser.parse_args()
    if given.command == "collect":
        collect(given.run, given.label, given.metric, given.into, given.steps)
    else:
        print(draw(given.file, given.title, given.bar))


if __name__ == "__main__":
    main()
