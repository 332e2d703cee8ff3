"""Draws curves of runs and compares two groups of runs, in a style fit for a paper.

Every part of an SVG has an id: ``mean-0`` and ``band-0`` are of the first group, ``run-0-1`` is its second run.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sfactory.config.flags import did_you_mean, shown
from sfactory.errors import RunDirError
from sfactory.pbt.plot import line_format, write_picture
from sfactory.results.page import title_of
from sfactory.results.runs import Axis, Group, Run
from sfactory.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement

_log = logging.getLogger(__name__)

# Okabe and Ito 2008: distinguishable with every kind of colour vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#A6761D")
AXES = {"env_steps": "env steps", "frames": "frames", "minutes": "minutes of training"}
# A column of a paper is about 3.4 inches wide, and its captions have 8 or 9 points.
_COLUMN, _HEIGHT = 3.4, 2.3
_SAME_END = 0.02  # share of steps by which runs may end apart without a word
_STYLE = {
    "svg.fonttype": "path",  # the same everywhere, whatever fonts there are
    "savefig.dpi": 300,
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
}


def draw_curves(groups: Sequence[Group], metric: str, over: Axis, label: str, target: Path) -> dict[str, object]:
    """Draw all groups into ``target``, each as one line in its band; a lone run is a line. Returns what was drawn.

    Warns of runs that are not done, or end before others of their group. Raises RunDirError if a run lacks the metric,
    and ResourceError as ``write_picture``.
    """
    reached = [_reached(group, metric) for group in groups]
    for group in groups:
        _warn_of_ends(group.runs, over)

    def make() -> Any:
        figure = _figure(_COLUMN)
        axes = figure.add_subplot()
        _draw_groups(axes, groups, metric, over, label)
        return figure

    write_picture(make, target, _STYLE)
    return {"metric": metric, "groups": [_facts(*each) for each in zip(groups, reached, strict=True)]}


def draw_comparison(
    groups: tuple[Group, Group], metric: str, over: Axis, label: str, target: Path
) -> dict[str, object]:
    """As ``draw_curves`` of two groups, and beside it what each run has reached, its mean and its 95% interval.

    The result also has ``probability_of_improvement``: of a run of the first group over one of the second. Runs of both
    groups are expected to end alike.
    """
    reached = [_reached(group, metric) for group in groups]
    _warn_of_ends([run for group in groups for run in group.runs], over)
    probability = probability_of_improvement(*reached)

    def make() -> Any:
        figure = _figure(2 * _COLUMN)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_groups(left, groups, metric, over, label)
        for at, values in enumerate(reached):
            low, high = bootstrap_interval(values)
            right.plot(
                [low, high],
                [at, at],
                color=COLORS[at],
                linewidth=6,
                alpha=0.3,
                solid_capstyle="butt",
                gid=f"interval-{at}",
            )
            right.plot(values, [at] * len(values), ".", color=COLORS[at], alpha=0.6, gid=f"reached-{at}")
            right.plot(interquartile_mean(values), at, "|", color=COLORS[at], markersize=12, markeredgewidth=1.6)
        right.set(xlabel=f"{label or title_of(metric)}, at the end", ylim=(1.6, -0.6))
        right.set_yticks((0, 1), [group.label for group in groups])
        right.set_title(f"P(first > second) = {probability:.2f}", fontsize=8)
        return figure

    write_picture(make, target, _STYLE)
    facts = [_facts(*each) for each in zip(groups, reached, strict=True)]
    return {"metric": metric, "groups": facts, "probability_of_improvement": probability}


def _figure(width: float) -> Any:
    return importlib.import_module("matplotlib.figure").Figure(figsize=(width, _HEIGHT), layout="constrained")


def _draw_groups(axes: Any, groups: Sequence[Group], metric: str, over: Axis, label: str) -> None:
    for at, group in enumerate(groups):
        color, band = COLORS[at % len(COLORS)], group.band(metric, over)
        for number, run in enumerate(group.runs):
            curve = run.curve(metric, over)
            style: dict[str, Any] = (
                {"linewidth": 0.5, "alpha": 0.35} if band else {"label": "" if number else group.label}
            )
            form = line_format(curve.values)
            axes.plot(curve.x, curve.values, form, color=color, gid=f"run-{at}-{number}", **style)
        if band:
            axes.fill_between(band.x, band.low, band.high, color=color, alpha=0.2, linewidth=0, gid=f"band-{at}")
            axes.plot(band.x, band.mean, color=color, label=group.label, gid=f"mean-{at}")
    axes.set(xlabel=AXES[over], ylabel=label or title_of(metric))
    if over != "minutes":
        axes.xaxis.set_major_formatter(importlib.import_module("matplotlib.ticker").EngFormatter(sep=""))
    if len(groups) > 1:
        axes.legend()


def _reached(group: Group, metric: str) -> list[float]:
    """The newest value of each run. Raises RunDirError if one has none."""
    return [_last(run, metric) for run in group.runs]


def _last(run: Run, metric: str) -> float:
    value = run.last(metric)
    if value is not None:
        return value
    if not run.rows:
        raise RunDirError(f"the run in {run.path} has no rows in metrics.jsonl yet; leave it out, or draw it later")
    near = did_you_mean(metric, run.metrics)
    raise RunDirError(
        f"the run in {run.path} has no number {shown(metric)!r} in metrics.jsonl{near or '; see --metric'}"
    )


def _warn_of_ends(runs: Sequence[Run], over: Axis) -> None:
    """Warn of runs that are not done or end before the others: what these have reached is of more steps."""
    unit: Axis = "frames" if over == "frames" else "env_steps"
    ends = [_end(run) * (run.frameskip if unit == "frames" else 1) for run in runs]
    for run, end in zip(runs, ends, strict=True):
        for problem in run.problems:
            _log.warning("%s", problem)
        status = run.status
        # In the same minutes runs make as many steps as their speed allows.
        ends_early = over != "minutes" and end < (1 - _SAME_END) * max(ends)
        if not ends_early and status in ("done", "unknown"):
            continue
        advice = {"running": ", or draw it at its end", "done": " or train it for longer"}.get(status, " or resume it")
        of = f" of {max(ends):,.0f}" if ends_early else ""
        _log.warning("%s ends at %s%s %s (%s): leave it out%s", run.path, f"{end:,.0f}", of, AXES[unit], status, advice)


def _end(run: Run) -> float:
    """Its last env step, or its limit, which whole datasets exceed by more or less."""
    steps, frames = (run.count(name, math.inf) for name in ("train_for_env_steps", "train_for_frames"))
    learning = run.settings.get("train_policies")
    policies = len(set(map(str, learning))) if learning and isinstance(learning, list) else run.count("num_policies")
    limit = policies * min(steps, frames / run.frameskip)
    return float(min(_last_env_steps(run), limit))


def _last_env_steps(run: Run) -> int:
    return int(run.rows[-1]["env_steps"])


def _facts(group: Group, reached: Sequence[float]) -> dict[str, object]:
    low, high = bootstrap_interval(reached)
    return {
        "label": group.label,
        "runs": [run.name for run in group.runs],
        "env_steps": [_last_env_steps(run) for run in group.runs],
        "iqm": float(interquartile_mean(reached)),
        "interval": [low, high],
    }
