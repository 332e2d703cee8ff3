"""Room: what there is to draw of a population. In: a run's files. Out: ``History``: curves over env steps.

Room: a population in one picture. In: its history. Out: an SVG or PNG.

Three kinds of panels: returns of every member, who took over from whom, and each hyperparameter over time. Every line
of an SVG has an id that says what it is: ``return-1``, ``birth-0-2``, ``learning_rate-1``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfactory import atomic
from sfactory.config.field import How
from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import hyperparameters, is_number, mutable_flags
from sfactory.config.saved_config import read_config
from sfactory.errors import ResourceError, RunDirError
from sfactory.pbt.event_log import GENEALOGY_NAME, Event, births, read_genealogy
from sfactory.pbt.mutation import leaves

METRICS_NAME = "metrics.jsonl"
RETURN, STEPS = "train/episode_return_mean", "perf/trained_env_steps"
SHAPING = "reward_shaping"


@dataclass(frozen=True)
class Curve:
    """Values of one policy over its env steps, which grow."""

    policy: int
    env_steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class ChildSpec:
    """``child`` took over from ``parent`` at its own env step ``env_steps``."""

    parent: int
    child: int
    env_steps: int


@dataclass(frozen=True)
class Trace:
    """One hyperparameter of all policies. log: what matters of it is its order of magnitude."""

    name: str
    log: bool
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class History:
    """All there is to draw; policies by their numbers."""

    policies: tuple[int, ...]
    returns: tuple[Curve, ...]
    births: tuple[ChildSpec, ...]
    traces: tuple[Trace, ...]


def read_history(run_dir: Path) -> History:
    """The history of the population of a run.

    Raises RunDirError if there is no such run, it has no population, or a file of it cannot be read.
    """
    saved = read_config(run_dir)
    if saved is None:
        raise RunDirError(f"{run_dir} is no run: it has no config.json; give the folder of a run, or its name")
    events = read_genealogy(run_dir)
    if not events:
        raise RunDirError(
            f"the run in {run_dir} has no population: {GENEALOGY_NAME} is missing or empty; it is written by runs with "
            "--with_pbt=True"
        )
    declared = {name: each.how for name, each in mutable_flags().items()}
    declared |= {each.name: each.how for each in hyperparameters(config_of(saved.values))}
    policies = tuple(sorted({event.policy for event in events}))
    rows = list(_rows(run_dir / METRICS_NAME))
    returns = tuple(curve for policy in policies if (curve := _returns(policy, rows)).values)
    ends = {curve.policy: curve.env_steps[-1] for curve in returns}
    own_births = tuple(
        ChildSpec(event.parent, event.policy, event.env_steps) for event in births(events) if event.parent is not None
    )
    return History(policies, returns, own_births, tuple(_traces(events, policies, declared, ends)))


def _rows(path: Path) -> Iterable[Mapping[str, object]]:
    """Rows of metrics.jsonl; what is none, such as half a row that a kill left, is passed over."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {error.strerror or error}") from error
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _returns(policy: int, rows: Iterable[Mapping[str, object]]) -> Curve:
    prefix = f"policy_{policy}/"
    told = ((row.get(f"{prefix}{STEPS}", row.get("env_steps")), row.get(f"{prefix}{RETURN}")) for row in rows)
    return _curve(policy, [(steps, value) for steps, value in told if is_number(steps) and is_number(value)])


def _curve(policy: int, points: Iterable[tuple[object, object]]) -> Curve:
    """A curve through points in the order in which they were written.

    A session that goes on from an older checkpoint takes back what came after it.
    """
    kept: list[tuple[float, float]] = []
    for steps, value in points:
        assert isinstance(steps, int | float)
        assert isinstance(value, int | float)
        while kept and kept[-1][0] > steps:
            kept.pop()
        kept.append((steps, value))
    return Curve(policy, tuple(steps for steps, _ in kept), tuple(value for _, value in kept))


def _traces(
    events: Sequence[Event], policies: Sequence[int], declared: Mapping[str, How], ends: Mapping[int, float]
) -> Iterable[Trace]:
    """One trace for each hyperparameter, and for each number of the reward shaping that differs somewhere."""
    values = [_values(event) for event in events]
    for name in dict.fromkeys(name for each in values for name in each):
        curves = []
        for policy in policies:
            points = [
                (event.env_steps, each[name])
                for event, each in zip(events, values, strict=True)
                if event.policy == policy and name in each
            ]
            curve = _curve(policy, points)
            if curve.values:
                curves.append(_up_to(ends.get(policy, 0), curve))
        seen = {value for curve in curves for value in curve.values}
        if name in declared:
            log = declared[name] in (How.FACTOR, How.LOG_UNIFORM, How.DOUBLE)
        elif len(seen) > 1:
            log = True
        else:
            continue
        yield Trace(name, log and min(seen) > 0, tuple(curves))


def _values(event: Event) -> dict[str, float]:
    """Everything that may differ between members, by name."""
    shaping = leaves(event.reward_shaping or {})
    return {**event.hyperparameters, **{".".join((SHAPING, *map(str, path))): value for path, value in shaping}}


def _up_to(end: float, curve: Curve) -> Curve:
    """The curve with its last value going on to ``end``."""
    if end <= curve.env_steps[-1]:
        return curve
    return Curve(curve.policy, (*curve.env_steps, end), (*curve.values, curve.values[-1]))


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
