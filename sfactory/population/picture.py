"""Room: a population in one picture. In: its history. Out: an SVG or PNG.

Three kinds of panels: returns of every member, who took over from whom, and each hyperparameter over time. Every line
of an SVG has an id that says what it is: ``return-1``, ``birth-0-2``, ``learning_rate-1``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from sfactory import atomic
from sfactory.errors import ResourceError
from sfactory.population.history import History, Trace

_WIDTH = 9.0  # inches, as all sizes here
_TALL, _MEDIUM, _LOW = 3.2, 2.2, 1.8
_COLUMNS = 2
_AXIS = "env steps of the policy"


def draw(history: History, target: Path) -> None:
    """Write the picture, in the format that the suffix of ``target`` says, whole or not at all.

    Raises ResourceError if matplotlib is missing, or the file cannot be written.
    """
    matplotlib = _matplotlib()
    # Ids that do not change, and text that stays text.
    with matplotlib.rc_context({"svg.hashsalt": "sfactory", "svg.fonttype": "none", "font.size": 8}):
        figure = _figure(history)
        metadata = {"Date": None} if target.suffix == ".svg" else {}
        try:
            with atomic.replacing(target) as file:
                figure.savefig(file, format=target.suffix[1:], metadata=metadata)
        except OSError as error:
            raise ResourceError(
                f"{target} cannot be written: {error.strerror or error}; choose another --out"
            ) from error


def _matplotlib() -> Any:
    """The library, typed so that mypy needs none."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise ResourceError(
            f"drawing needs matplotlib, which cannot be imported ({error}): run pip install 'sfactory[plot]'"
        ) from error


def _figure(history: History) -> Any:
    rows = -(-len(history.traces) // _COLUMNS)
    heights = [_TALL, _MEDIUM, *[_LOW] * rows]
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), _COLUMNS, height_ratios=heights)
    _draw_returns(figure.add_subplot(grid[0, :]), history)
    _draw_births(figure.add_subplot(grid[1, :]), history)
    for index, trace in enumerate(history.traces):
        axes = figure.add_subplot(grid[2 + index // _COLUMNS, index % _COLUMNS])
        _draw_trace(axes, trace)
    return figure


def _color(policy: int) -> str:
    return f"C{policy % 10}"


def _draw_returns(axes: Any, history: History) -> None:
    for curve in history.returns:
        name = f"policy {curve.policy}"
        axes.plot(curve.env_steps, curve.values, color=_color(curve.policy), label=name, gid=f"return-{curve.policy}")
    axes.set(title="mean return of the last episodes")
    _along_env_steps(axes)
    axes.grid(alpha=0.3)
    if history.returns:
        axes.legend(fontsize=7, ncols=4)


def _draw_births(axes: Any, history: History) -> None:
    ends = {curve.policy: curve.env_steps[-1] for curve in history.returns}
    last = max([0, *(birth.env_steps for birth in history.births), *ends.values()])
    for policy in history.policies:
        axes.plot([0, ends.get(policy, last)], [policy, policy], color=_color(policy), linewidth=0.8)
    arrow = importlib.import_module("matplotlib.patches").FancyArrowPatch
    for birth in history.births:
        # Bent, so that two at the same env step can be told apart.
        axes.add_patch(
            arrow(
                (birth.env_steps, birth.parent),
                (birth.env_steps, birth.child),
                arrowstyle="-|>",
                connectionstyle="arc3,rad=0.3",
                mutation_scale=9,
                shrinkA=0,
                shrinkB=0,
                color=_color(birth.parent),
                gid=f"birth-{birth.parent}-{birth.child}",
            )
        )
    axes.set(title="who took over from whom (arrows point to the child)", yticks=history.policies)
    _along_env_steps(axes)
    axes.set_ylabel("policy")
    axes.invert_yaxis()


def _draw_trace(axes: Any, trace: Trace) -> None:
    for curve in trace.curves:
        axes.step(
            curve.env_steps,
            curve.values,
            where="post",
            color=_color(curve.policy),
            linewidth=1.0,
            gid=f"{trace.name}-{curve.policy}",
        )
    if trace.log:
        axes.set_yscale("log")
    axes.set(title=trace.name)
    _along_env_steps(axes)
    axes.grid(alpha=0.3)


def _along_env_steps(axes: Any) -> None:
    """With 120 k for 120,000, so that there is room for it."""
    axes.set_xlabel(_AXIS)
    axes.xaxis.set_major_formatter(importlib.import_module("matplotlib.ticker").EngFormatter())
