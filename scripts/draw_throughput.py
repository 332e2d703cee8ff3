"""The chart of what bench.py has measured: for each workload env steps per second, stage by stage, and the ceiling.

    python scripts/draw_throughput.py docs/performance/bench.json docs/performance/throughput.svg

Bars are medians, on a logarithmic scale; behind full training stands its share of the ceiling, which is the dashed
line. Drawing needs matplotlib: pip install -e '.[docs]'
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# From top to bottom: name of the measurement, what it is called here, colour. What follows are peers.
STAGES = {
    "env": ("pure simulation", "#9e9e9e"),
    "sample local": ("sampling, local", "#9ecae1"),
    "sample central": ("sampling, central", "#c6dbef"),
    "learn": ("learning alone", "#fdae6b"),
    "full local": ("training, local", "#2171b5"),
    "full central": ("training, central", "#6baed6"),
}
CEILINGS = ("forward x", "train x")
PEER_COLOUR = "#a1d99b"
COLUMNS = 2
ROW_HEIGHT, HEAD_HEIGHT = 0.21, 0.75  # inches
ROOM = 12.0  # bars end at this part of the scale's upper end, so that figures fit behind them


class Bar(NamedTuple):
    """``share``: of the ceiling; None where that means nothing."""

    label: str
    steps_per_second: float
    share: float | None
    colour: str


def bars_of(workload: Mapping[str, Any]) -> list[Bar]:
    """The bars of one workload, from top to bottom."""
    rates = workload["medians"]
    shares = workload.get("ceiling", {}).get("share_reached", {})
    ours = [
        Bar(label, rates[name], shares.get(name), colour) for name, (label, colour) in STAGES.items() if name in rates
    ]
    others = [name for name in rates if name not in STAGES and not name.startswith(CEILINGS)]
    return [*ours, *(Bar(name, rates[name], None, PEER_COLOUR) for name in others)]


def short(steps_per_second: float) -> str:
    """Three figures: 613 k, 6.13 M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if steps_per_second >= unit:
            return f"{steps_per_second / unit:.3g} {name}"
    return f"{steps_per_second:.3g}"


def draw(measured: Mapping[str, Any], target: Path) -> None:
    """Draw a panel for each workload."""
    # Typed as Any, so that types can be checked where matplotlib is not installed.
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    # The same file for the same data: no date, and ids that do not change.
    matplotlib.rcParams.update({"svg.hashsalt": "sfactory", "svg.fonttype": "none", "font.size": 8})
    pyplot: Any = importlib.import_module("matplotlib.pyplot")

    panels = {name: (bars_of(each), each) for name, each in measured["workloads"].items()}
    rows = -(-len(panels) // COLUMNS)
    most = max(len(bars) for bars, _ in panels.values())
    size = (9.0, rows * (HEAD_HEIGHT + ROW_HEIGHT * most) + 0.3)
    figure, grid = pyplot.subplots(rows, COLUMNS, figsize=size, layout="constrained", squeeze=False)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes, (name, (bars, workload)) in zip(grid.flat, panels.items(), strict=False):
        _draw_panel(axes, f"{name}: {workload['about']}", bars, workload.get("ceiling"))
    figure.suptitle(f"Env steps per second, {measured['cores']} cores of {measured['cpu']}, {measured['date']}")
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


def _draw_panel(axes: Any, title: str, bars: list[Bar], ceiling: Mapping[str, Any] | None) -> None:
    rates = [bar.steps_per_second for bar in bars]
    limit = None if ceiling is None else ceiling["env_steps_per_second"]
    known = rates if limit is None else [*rates, limit]
    axes.barh(range(len(bars)), rates, color=[bar.colour for bar in bars], height=0.75)
    for row, bar in enumerate(bars):
        share = "" if bar.share is None else f" · {bar.share:.0%} of the ceiling"
        # White under the text, where the line of the ceiling would cross it.
        background = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        text = f"{short(bar.steps_per_second)}{share}"
        axes.annotate(
            text,
            (bar.steps_per_second, row),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            bbox=background,
        )
    if limit is not None:
        axes.axvline(limit, color="#cb181d", linewidth=1, linestyle="--", label=f"ceiling: {short(limit)}", zorder=0.5)
        axes.legend(fontsize=7, loc="upper right", bbox_to_anchor=(1.0, -0.1), frameon=False, borderaxespad=0.0)
    axes.set(xscale="log", xlim=(min(known) / 3, max(known) * ROOM), yticks=range(len(bars)))
    axes.set_yticklabels([bar.label for bar in bars])
    axes.set_title(title, loc="left", fontsize=8, fontweight="bold")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def main() -> None:
    """Read the command line, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    draw(json.loads(given.measured.read_text()), given.target)
    print(given.target)


if __name__ == "__main__":
    main()
