"""Draws a population from the files of its run or runs: returns, replacements and hyperparameters over env steps.

Every line of an SVG has an id: ``return-1``, ``birth-0-2`` (policy 2 got the weights of policy 0), ``learning_rate-1``.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfactory import atomic
from sfactory.config.field import How
from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import hyperparameters, is_number, mutable_flags
from sfactory.config.saved_config import METRICS_NAME, read_config
from sfactory.errors import ResourceError, RunDirError, SFactoryError, clean
from sfactory.pbt.event_log import EVENT_LOG_NAME, Event, Kind, read_events
from sfactory.pbt.mutation import leaves
from sfactory.pbt.shared_dir import runs_in
from sfactory.system.optional_packages import required

RETURN, STEPS = "train/episode_return_mean", "perf/trained_env_steps"
_log = logging.getLogger(__name__)
_LOGARITHMIC = (How.FACTOR, How.LOG_UNIFORM, How.DOUBLE)  # values of these kinds of mutation have such an axis


@dataclass(frozen=True)
class Curve:
    """Values of one policy over its increasing env steps."""

    policy: int
    env_steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Trace:
    """One hyperparameter of all policies. log: draw it on a logarithmic axis."""

    name: str
    log: bool
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class History:
    """Everything that is drawn."""

    policies: tuple[int, ...]
    returns: tuple[Curve, ...]
    replacements: tuple[Event, ...]
    traces: tuple[Trace, ...]


def read_history(path: Path) -> History:
    """The history of a population: of a run, or of the runs that have the ``--pbt_dir`` ``path``.

    Raises RunDirError if there is no run or population, or a file is invalid.
    """
    events: list[Event] = []
    returns: list[Curve] = []
    declared = {name: each.how for name, each in mutable_flags().items()}
    for new_events, new_returns, how in _read_runs(path):
        events += new_events
        returns += new_returns
        declared |= how
    members = {event.policy for event in events} | {event.parent for event in events if event.parent is not None}
    ends = {curve.policy: curve.env_steps[-1] for curve in returns}
    replacements = tuple(event for event in events if event.kind is Kind.REPLACE)
    policies = tuple(sorted(members))
    return History(policies, tuple(returns), replacements, tuple(_traces(events, policies, declared, ends)))


_Part = tuple[list[Event], list[Curve], dict[str, How]]


def _read_runs(path: Path) -> list[_Part]:
    """``_read_run`` of the run in ``path``, or of all members of the population there whose runs can be read."""
    runs = runs_in(path)
    if not runs:
        return [_read_run(path)]
    parts = []
    for number, run_dir in runs.items():
        try:
            parts.append(_read_run(run_dir))
        except SFactoryError as error:
            reason = clean(str(error)).partition("; ")[0]  # without advice that is for one run
            _log.warning("member %d is left out, as its run in %s cannot be read: %s", number, run_dir, reason)
    if not parts:
        raise RunDirError(f"of the {len(runs)} runs of the population in {path} none can be read on this machine")
    return parts


def _read_run(run_dir: Path) -> _Part:
    """Events of a run, returns of its members, and how hyperparameters are mutated; raises RunDirError."""
    saved = read_config(run_dir)
    if saved is None:
        advice = "give the directory or the name of one run, or the --pbt_dir of a population of runs"
        raise RunDirError(f"{run_dir} is not a run: it has no config.json; {advice}")
    events = read_events(run_dir)
    if not events:
        raise RunDirError(
            f"the run in {run_dir} has no population: {EVENT_LOG_NAME} is missing or empty; only runs with "
            "--with_pbt=True write it"
        )
    config = config_of(saved.values)
    rows = list(metrics_rows(run_dir / METRICS_NAME))
    policies = sorted({event.policy for event in events})
    several = config.population.num_policies > 1  # otherwise the rows are of the one member
    returns = [_returns(policy, f"policy_{policy}/" if several else "", rows) for policy in policies]
    how = {each.name: each.how for each in hyperparameters(config)}
    return events, [curve for curve in returns if curve.values], how


def metrics_rows(path: Path) -> Iterable[Mapping[str, object]]:
    """Rows of metrics.jsonl without invalid ones, such as a row cut off by a kill; raises RunDirError."""
    try:
        lines = atomic.read_bytes(path).splitlines()
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {error.strerror or error}") from error
    for line in lines:
        try:
            row = atomic.parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _returns(policy: int, prefix: str, rows: Iterable[Mapping[str, object]]) -> Curve:
    """The curve of a policy. prefix: of the names of its numbers in ``rows``."""
    points = ((row.get(f"{prefix}{STEPS}", row.get("env_steps")), row.get(f"{prefix}{RETURN}")) for row in rows)
    return _curve(policy, [(steps, value) for steps, value in points if is_number(steps) and is_number(value)])


def _curve(policy: int, points: Iterable[tuple[Any, Any]], end: float = 0) -> Curve:
    """A curve through points in the order of writing; its last value is continued to ``end``.

    A session resumed from an older checkpoint removes the points after it.
    """
    kept: list[tuple[float, float]] = []
    for steps, value in points:
        while kept and kept[-1][0] > steps:
            kept.pop()
        kept.append((steps, value))
    if kept and end > kept[-1][0]:
        kept.append((end, kept[-1][1]))
    return Curve(policy, tuple(steps for steps, _ in kept), tuple(value for _, value in kept))


def _traces(
    events: Sequence[Event], policies: Sequence[int], declared: Mapping[str, How], ends: Mapping[int, float]
) -> Iterable[Trace]:
    """One trace for each hyperparameter, and for each number of the reward shaping that differs somewhere."""
    values = [(event, _values(event)) for event in events]
    for name in dict.fromkeys(name for _, each in values for name in each):
        known = [(event, each[name]) for event, each in values if name in each]
        curves = []
        for policy in policies:
            points = [(event.env_steps, value) for event, value in known if event.policy == policy]
            curves.append(_curve(policy, points, ends.get(policy, 0)))
        seen = {value for curve in curves for value in curve.values}
        if name in declared or len(seen) > 1:
            log = declared.get(name, How.FACTOR) in _LOGARITHMIC
            yield Trace(name, log and min(seen) > 0, tuple(curve for curve in curves if curve.values))


def _values(event: Event) -> dict[str, float]:
    """All values of a member that can be mutated, by name."""
    shaping = leaves(event.reward_shaping or {})
    return {**event.hyperparameters} | {".".join(("reward_shaping", *map(str, path))): value for path, value in shaping}


_COLUMNS = 2


def draw(history: History, target: Path) -> None:
    """Write an SVG or PNG, by the suffix of ``target``; raises as ``write_picture``."""
    # Text instead of outlines.
    write_picture(lambda: _figure(history), target, {"svg.fonttype": "none", "font.size": 8})


def write_picture(make: Callable[[], Any], target: Path, style: Mapping[str, object]) -> None:
    """Write the figure that ``make`` returns as an SVG or PNG, by the suffix of ``target``. style: of matplotlib.

    Raises ConfigError without matplotlib, before ``make`` is called, and ResourceError if the file cannot be written.
    """
    matplotlib = required("matplotlib", "drawing", "plot")
    with matplotlib.rc_context({"svg.hashsalt": "sfactory", **style}):  # reproducible ids
        figure = make()
        metadata = {"Date": None} if target.suffix == ".svg" else {}
        try:
            with atomic.replacing(target) as file:
                figure.savefig(file, format=target.suffix[1:], metadata=metadata)
        except OSError as error:
            reason = error.strerror or error
            raise ResourceError(f"{target} cannot be written: {reason}; choose another --out") from error


def _figure(history: History) -> Any:
    rows = -(-len(history.traces) // _COLUMNS)
    heights = [3.2, 2.2, *[1.8] * rows]  # in inches, as the width
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(9.0, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), _COLUMNS, height_ratios=heights)
    _draw_returns(figure.add_subplot(grid[0, :]), history)
    _draw_replacements(figure.add_subplot(grid[1, :]), history)
    for index, trace in enumerate(history.traces):
        _draw_trace(figure.add_subplot(grid[2 + index // _COLUMNS, index % _COLUMNS]), trace)
    return figure


def _color(policy: int) -> str:
    return f"C{policy % 10}"


def line_format(values: Sized) -> str:
    """That of a curve for matplotlib: one value is a point, as nothing is seen of a line with one."""
    return "-" if len(values) > 1 else "."


def _draw_returns(axes: Any, history: History) -> None:
    for curve in history.returns:
        style = {"color": _color(curve.policy), "label": f"policy {curve.policy}", "gid": f"return-{curve.policy}"}
        axes.plot(curve.env_steps, curve.values, line_format(curve.values), **style)
    _label(axes, "mean return of the last episodes")
    if history.returns:
        axes.legend(fontsize=7, ncols=4)


def _draw_replacements(axes: Any, history: History) -> None:
    ends = {curve.policy: curve.env_steps[-1] for curve in history.returns}
    last = max([0, *(event.env_steps for event in history.replacements), *ends.values()])
    for policy in history.policies:
        axes.plot([0, ends.get(policy, last)], [policy, policy], color=_color(policy), linewidth=0.8)
    arrow = importlib.import_module("matplotlib.patches").FancyArrowPatch
    for event in history.replacements:
        assert event.parent is not None
        axes.add_patch(
            arrow(
                (event.env_steps, event.parent),
                (event.env_steps, event.policy),
                arrowstyle="-|>",
                connectionstyle="arc3,rad=0.3",  # bent, so that two at the same env step can be distinguished
                mutation_scale=9,
                shrinkA=0,
                shrinkB=0,
                color=_color(event.parent),
                gid=f"birth-{event.parent}-{event.policy}",
            )
        )
    _label(axes, "replacements (arrows point to the policy that got the weights)")
    axes.set(yticks=history.policies, ylabel="policy")
    axes.invert_yaxis()


def _draw_trace(axes: Any, trace: Trace) -> None:
    for curve in trace.curves:
        style = {"where": "post", "color": _color(curve.policy), "linewidth": 1.0}
        axes.step(curve.env_steps, curve.values, gid=f"{trace.name}-{curve.policy}", **style)
    if trace.log:
        axes.set_yscale("log")
    _label(axes, trace.name)


def _label(axes: Any, title: str) -> None:
    """Set the title and a grid, and label the axis of env steps, with 120 k for 120,000."""
    axes.set(title=title, xlabel="env steps of the policy")
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_formatter(importlib.import_module("matplotlib.ticker").EngFormatter())
