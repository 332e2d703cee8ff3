"""The chart of what bench.py has measured: for each workload env steps per second, stage by stage, and the ceiling.

    python scripts/draw_throughput.py docs/performance/bench.json docs/performance/throughput.svg
    python scripts/draw_throughput.py one.json other.json throughput.svg

Bars are medians, on a logarithmic scale. Behind sampling stands its share of pure simulation, behind full training that
of the ceiling, which is the dashed line: medians of the shares of each round. Several files must be of one machine, and
a workload that several of them hold is drawn from the rounds of all. Drawing needs matplotlib: pip install -e '.[plot]'
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.bench_files import joined
from scripts.drawing import command, hardware, pyplot, save
from scripts.figures import is_peer

# From top to bottom: name of the measurement, what it is called here, colour. What follows are peers.
STAGES = {
    "env": ("pure simulation", "#9e9e9e"),
    "sample local": ("sampling, local", "#9ecae1"),
    "sample central": ("sampling, central", "#c6dbef"),
    "learn": ("learning alone", "#fdae6b"),
    "full local": ("training, local", "#2171b5"),
    "full central": ("training, central", "#6baed6"),
}
PEER_COLOUR = "#a1d99b"
COLUMNS = 2
ROW_HEIGHT, HEAD_HEIGHT = 0.21, 0.75  # inches
ROOM = 12.0  # bars end at this part of the scale's upper end, so that figures fit behind them


class Bar(NamedTuple):
    """``note``: a share in words; empty where there is none."""

    label: str
    steps_per_second: float
    note: str
    colour: str


def bars_of(workload: Mapping[str, Any]) -> list[Bar]:
    """The bars of one workload, from top to bottom."""
    rates = workload["medians"]
    notes = {
        **_notes(workload["share_of_pure_simulation"], "of pure simulation"),
        **_notes(workload.get("ceiling", {}).get("share_reached", {}), "of the ceiling"),
    }
    ours = [
        Bar(label, rates[name], notes.get(name, ""), colour)
        for name, (label, colour) in STAGES.items()
        if name in rates
    ]
    return [*ours, *(Bar(name, rates[name], "", PEER_COLOUR) for name in filter(is_peer, rates))]


def _notes(shares: Mapping[str, Mapping[str, float]], of: str) -> dict[str, str]:
    return {name: f"{share['median']:.0%} {of}" for name, share in shares.items()}


def short(steps_per_second: float) -> str:
    """Three figures: 613 k, 6.13 M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if steps_per_second >= unit:
            return f"{steps_per_second / unit:.3g} {name}"
    return f"{steps_per_second:.3g}"


def draw(measured: Mapping[str, Any], target: Path) -> None:
    """Draw a panel for each workload."""
    plot = pyplot(font_size=8)
    panels = {name: (bars_of(each), each) for name, each in measured["workloads"].items()}
    rows = -(-len(panels) // COLUMNS)
    most = max(len(bars) for bars, _ in panels.values())
    size = (9.0, rows * (HEAD_HEIGHT + ROW_HEIGHT * most) + 0.3)
    figure, grid = plot.subplots(rows, COLUMNS, figsize=size, layout="constrained", squeeze=False)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes, (name, (bars, workload)) in zip(grid.flat, panels.items(), strict=False):
        _draw_panel(axes, f"{name}: {workload['about']}", bars, workload.get("ceiling"))
    figure.suptitle(f"Env steps per second, {hardware(measured)}, {measured['date']}")
    save(figure, target)


def _draw_panel(axes: Any, title: str, bars: list[Bar], ceiling: Mapping[str, Any] | None) -> None:
    rates = [bar.steps_per_second for bar in bars]
    limit = None if ceiling is None else ceiling["env_steps_per_second"]
    known = rates if limit is None else [*rates, limit]
    axes.barh(range(len(bars)), rates, color=[bar.colour for bar in bars], height=0.75)
    for row, bar in enumerate(bars):
        # White under the text, where the line of the ceiling would cross it.
        background = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        text = " · ".join(filter(None, [short(bar.steps_per_second), bar.note]))
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
        axes.legend(fontsize=7, loc="upper right", bbox_to_anchor=(1.0, -0.13), frameon=False, borderaxespad=0.0)
    axes.set(xscale="log", xlim=(min(known) / 3, max(known) * ROOM), yticks=range(len(bars)))
    axes.set_yticklabels([bar.label for bar in bars])
    axes.set_title(title, loc="left", fontsize=8, fontweight="bold")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


if __name__ == "__main__":
    command(__doc__, lambda files, target: draw(joined(files), target), several=True)
