"""Learning curves for the docs: thin a run's metrics into a small file of the repository, and draw such files.

    python scripts/draw_curves.py collect train_dir/breakout "seed 1" --into docs/results/breakout.json
    python scripts/draw_curves.py draw docs/results/breakout.json --bar 10 --title "Breakout: mean game score"

``collect`` adds the run's curve under its label (replacing one of that name); ``draw`` writes an SVG beside the file.
Drawing needs matplotlib: pip install -e '.[docs]'
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

POINTS = 120
RETURN = "train/episode_return_mean"


def collect(run: Path, label: str, metric: str, into: Path) -> None:
    """Add at most POINTS points of ``metric`` over env steps to the curves in ``into``."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    points = [(row["env_steps"], round(row[metric], 3)) for row in rows if row.get(metric) is not None]
    if not points:
        raise SystemExit(f"{run}/metrics.jsonl has no {metric}")
    step = max(1, -(-len(points) // POINTS))
    kept = points[::step] if points[-1] in points[::step] else [*points[::step], points[-1]]
    curves = json.loads(into.read_text()) if into.exists() else {}
    curves[label] = {"metric": metric, "env_steps": [x for x, _ in kept], "values": [y for _, y in kept]}
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps(curves, indent=1) + "\n")


def draw(path: Path, title: str, bar: float | None) -> Path:
    """Draw all curves of a file; returns the SVG's path."""
    import matplotlib

    matplotlib.use("svg")
    # The same file for the same data: no date, and ids that do not change.
    matplotlib.rcParams.update({"svg.hashsalt": "sfactory", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 3.6), layout="constrained")
    for label, curve in json.loads(path.read_text()).items():
        axes.plot([steps / 1000 for steps in curve["env_steps"]], curve["values"], label=label, linewidth=1.2)
    if bar is not None:
        axes.axhline(bar, color="black", linewidth=0.8, linestyle=":", label=f"bar: {bar:g}")
    axes.set(title=title, xlabel="env steps (thousands)", ylabel="mean of the last 100 episodes")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    target = path.with_suffix(".svg")
    figure.savefig(target, metadata={"Date": None})
    return target


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("collect")
    adding.add_argument("run", type=Path)
    adding.add_argument("label")
    adding.add_argument("--metric", default=RETURN)
    adding.add_argument("--into", type=Path, required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("--title", default="")
    drawing.add_argument("--bar", type=float)
    given = parser.parse_args()
    if given.command == "collect":
        collect(given.run, given.label, given.metric, given.into)
    else:
        print(draw(given.file, given.title, given.bar))


if __name__ == "__main__":
    main()
