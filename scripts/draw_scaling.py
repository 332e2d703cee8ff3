"""Draws what scaling.py measured: an SVG of two panels.

    python scripts/draw_scaling.py docs/performance/scaling.json docs/performance/scaling.svg

On the left throughput over the number of workers, a line for each number of envs; on the right memory, the median over
these. Drawing needs matplotlib: pip install -e '.[plot]'
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.drawing import command, hardware, pyplot, save

Row = Mapping[str, Any]
Line = list[tuple[int, float]]  # (workers, value), by workers

COLOURS = {"central": "Blues", "local": "Oranges"}
MARKERS = {"central": "o", "local": "s"}
TOGETHER = "all processes together"
KINDS = {"actor": "an actor", "policy_worker": "the policy worker", "learner": "the learner"}
DASHES = {TOGETHER: "-", "an actor": "--", "the policy worker": ":", "the learner": "-."}


def throughput_lines(rows: Sequence[Row]) -> dict[tuple[str, int], Line]:
    """Env steps per second by inference and number of envs."""
    lines: dict[tuple[str, int], Line] = {}
    for row in sorted(rows, key=lambda row: (row["inference"], row["envs"], row["workers"])):
        line = lines.setdefault((row["inference"], row["envs"]), [])
        line.append((row["workers"], row["env_steps_per_second"]))
    return lines


def memory_lines(rows: Sequence[Row]) -> dict[tuple[str, str], Line]:
    """Megabytes by inference and by what takes them: all processes together, or a process of one kind to itself."""
    values: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        takes = {TOGETHER: row["total_pss_mb"]}
        takes |= {text: row["private_mb"][kind] for kind, text in KINDS.items() if kind in row["private_mb"]}
        for what, megabytes in takes.items():
            values.setdefault((row["inference"], what), {}).setdefault(row["workers"], []).append(megabytes)
    return {key: [(count, statistics.median(of[count])) for count in sorted(of)] for key, of in values.items()}


def draw(measured: Mapping[str, Any], target: Path) -> None:
    """Draw both panels."""
    plot = pyplot(font_size=9)
    rows = measured["cells"]
    figure, (left, right) = plot.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    _draw_throughput(left, throughput_lines(rows), plot.get_cmap)
    _draw_memory(right, memory_lines(rows), plot.get_cmap)
    workers = sorted({row["workers"] for row in rows})
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(workers, [str(count) for count in workers])
        axes.minorticks_off()
        axes.set_xlabel("workers")
        axes.grid(alpha=0.3)
    figure.suptitle(f"{measured['env']}, {hardware(measured)}, {measured['date']}", fontsize=9)
    save(figure, target)


def _draw_throughput(axes: Any, lines: Mapping[tuple[str, int], Line], colormap: Any) -> None:
    """The more envs, the darker."""
    sizes = sorted({envs for _, envs in lines})
    for (inference, envs), line in sorted(lines.items(), key=lambda item: (item[0][0], -item[0][1])):
        colour = colormap(COLOURS[inference])(0.35 + 0.6 * (sizes.index(envs) + 1) / len(sizes))
        workers, rates = zip(*line, strict=True)
        thousands = [rate / 1000 for rate in rates]
        label = f"{inference}, {envs:,} envs each"
        axes.plot(workers, thousands, color=colour, marker=MARKERS[inference], markersize=3, linewidth=1.2, label=label)
    axes.set(title="throughput", ylabel="trained env steps per second (thousands)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, ncols=2)


def _draw_memory(axes: Any, lines: Mapping[tuple[str, str], Line], colormap: Any) -> None:
    """Kinds of processes by dashes, on a scale that has room for an actor and for all processes."""
    named: dict[str, float] = {}
    for (inference, what), line in lines.items():
        workers, megabytes = zip(*line, strict=True)
        label = inference if what == TOGETHER else None
        colour, marker = colormap(COLOURS[inference])(0.75), MARKERS[inference]
        axes.plot(workers, megabytes, DASHES[what], color=colour, marker=marker, markersize=3, label=label)
        named[what] = max(named.get(what, 0.0), megabytes[0])
    first = min(line[0][0] for line in lines.values())
    for what, height in named.items():
        below = what == KINDS["policy_worker"]  # which takes as much as an actor
        text = what if what == TOGETHER else f"{what} to itself"
        place: dict[str, Any] = {
            "xytext": (0, -6 if below else 5),
            "textcoords": "offset points",
            "va": "top" if below else "bottom",
        }
        axes.annotate(text, (first, height), fontsize=8, **place)
    axes.set(title="memory", ylabel="MB", yscale="log")
    axes.set_ylim(5, 2 * max(value for line in lines.values() for _, value in line))
    ticks = [tick for tick in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if tick <= axes.get_ylim()[1]]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.legend(fontsize=7, loc="center right")


if __name__ == "__main__":
    command(__doc__, lambda files, target: draw(files[0], target))
