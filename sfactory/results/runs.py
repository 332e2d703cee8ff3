"""Reads runs from the files in their folders, also while they train, and puts those of the same settings together."""

from __future__ import annotations

import dataclasses
import itertools
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sfactory import atomic
from sfactory.config.flags import assigned, value_text
from sfactory.config.hyperparameters import is_number
from sfactory.config.saved_config import CONFIG_NAME, METRICS_NAME, NOT_RESUMED, RUN_NAME
from sfactory.config.schema import ReportConfig
from sfactory.errors import RunDirError
from sfactory.experiment.run_dir import is_held
from sfactory.pbt.plot import metrics_rows
from sfactory.process.stack_dump import is_alive
from sfactory.statistics import RESAMPLES, bootstrap_band, interquartile_mean

Array = npt.NDArray[np.float64]
Axis = Literal["env_steps", "frames", "minutes"]

RETURN = "train/episode_return_mean"
_SECONDS = "perf/train_seconds"
# Flags that say nothing about how a run trains: seeds of the same settings differ in them.
_REPORTED = {field.name for field in dataclasses.fields(ReportConfig)} - {"stats_avg"}
_ALSO_OF_SEEDS = NOT_RESUMED | _REPORTED | {"seed", "device"}
_OF_PROCESSES = ("load/", "memory/")
_MOST_FLAGS = 3  # in a label


@dataclass(frozen=True)
class Curve:
    """Values of one run at ``x``, which grows; both [N] float64."""

    x: Array
    values: Array


@dataclass(frozen=True)
class Band:
    """Several runs together: their interquartile mean at ``x``, and its 95% interval; all [N] float64."""

    x: Array
    mean: Array
    low: Array
    high: Array


class Run:
    """A run, from its files as they are now. Files that are missing or broken count as empty: ``problems`` says so."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.resolve().name
        self.problems: list[str] = []
        self._values: dict[str, tuple[list[int], Array]] = {}  # at which rows, by metric; each is drawn several times
        saved = self._read(CONFIG_NAME)
        self.settings: Mapping[str, Any] = _mapping(saved.get("config"))
        self.sources: Mapping[str, Any] = _mapping(saved.get("sources"))
        self.facts = self._read(RUN_NAME)
        try:
            self.rows = _without_undone(metrics_rows(path / METRICS_NAME))
        except RunDirError as error:
            self.rows = []
            self.problems.append(str(error))

    @property
    def status(self) -> str:
        """What run.json says now; "killed" if that was left by a main process of this machine that is gone."""
        status, pid = str(self.facts.get("status", "unknown")), self.facts.get("pid")
        if status != "running" or self.facts.get("hostname") != socket.gethostname() or type(pid) is not int:
            return status
        # A process that cannot be seen from here, as one in another container, has its lock.
        return status if is_alive(pid) or is_held(self.path) else "killed"

    def _read(self, name: str) -> Mapping[str, Any]:
        try:
            return _mapping(atomic.read_json(self.path / name))
        except FileNotFoundError:
            if name == CONFIG_NAME:
                self.problems.append(f"{self.path} has no {name}: it may not be a run")
        except (OSError, ValueError) as error:
            self.problems.append(f"{self.path / name} cannot be read: {error}")
        return {}

    @cached_property
    def same(self) -> Mapping[str, str]:
        """The settings as text, without those in which seeds of the same settings may differ."""
        return {name: setting_text(value) for name, value in self.settings.items() if name not in _ALSO_OF_SEEDS}

    @cached_property
    def metrics(self) -> list[str]:
        """The names in all rows, in the order of their first rows: rows of evaluations and of observers have others."""
        found: dict[str, Any] = {}
        for row in self.rows:
            found.update(row)
        return list(found)

    @cached_property
    def _steps(self) -> Array:
        return np.array([row["env_steps"] for row in self.rows], np.float64)

    @cached_property
    def _minutes(self) -> Array:
        """Of training at each row; rows of evaluations have the time of the row before."""
        minutes, last = [], 0.0
        for row in self.rows:
            seconds: Any = row.get(_SECONDS)
            last = seconds / 60 if is_number(seconds) else last
            minutes.append(last)
        return np.array(minutes)

    def count(self, name: str, missing: float = 1.0) -> float:
        """A setting that is a number above 0. Another one counts as ``missing``, and ``problems`` says so."""
        value = self.settings.get(name, missing)
        if value is missing or (is_number(value) and value > 0):
            return float(value)
        self.problems.append(f"{self.path / CONFIG_NAME}: {assigned(name, value)} is no number above 0")
        return missing

    @cached_property
    def frameskip(self) -> float:
        """Frames of an env step, as Config.frames_per_step counts them."""
        return self.count("env_frameskip") * self.count("action_repeat")

    def curve(self, metric: str, over: Axis = "env_steps") -> Curve:
        """The values of one metric where rows have it; of processes, only while these work."""
        if metric not in self._values:
            self._values[metric] = self._values_of(metric)
        at, values = self._values[metric]
        if over == "minutes":
            return Curve(self._minutes[at] if at else values, values)
        scale = self.frameskip if over == "frames" else 1.0
        return Curve(scale * self._steps[at] if at else values, values)

    def _values_of(self, metric: str) -> tuple[list[int], Array]:
        at = [index for index, row in enumerate(self.rows) if is_number(row.get(metric))]
        if metric.startswith(_OF_PROCESSES):
            # The last row of a session is written when its processes have ended.
            end = len(self.rows) - (self.facts.get("status") != "running")
            at = [index for index in at if index < end and self.rows[index]["env_steps"]]
        return at, np.array([self.rows[index][metric] for index in at], np.float64)

    def last(self, metric: str) -> float | None:
        """The newest value of a metric; None if it has none."""
        return next((float(row[metric]) for row in reversed(self.rows) if is_number(row.get(metric))), None)


def setting_text(value: object) -> str:
    """A value of config.json as the command line writes it."""
    return value_text(tuple(value) if isinstance(value, list) else value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _without_undone(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows with env steps, less those that a session undid by resuming from an older checkpoint."""
    kept: list[Mapping[str, Any]] = []
    for row in rows:
        steps = row.get("env_steps")
        if not is_number(steps):
            continue
        while kept and kept[-1]["env_steps"] > steps:
            kept.pop()
        kept.append(row)
    return kept


@dataclass(frozen=True)
class Group:
    """Runs that are shown together. differing: the settings that all of them have, and not all other groups."""

    label: str
    runs: Sequence[Run]
    differing: Mapping[str, str]

    def band(self, metric: str, over: Axis, points: int = 100, resamples: int = RESAMPLES) -> Band | None:
        """The runs together, as far as all of them go; None if fewer than two have the metric, or none at one place."""
        curves = [curve for run in self.runs if len((curve := run.curve(metric, over)).x)]
        if len(curves) < 2:
            return None
        begin, end = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
        if begin >= end:
            return None
        x = np.linspace(begin, end, points)
        values = np.stack([np.interp(x, curve.x, curve.values) for curve in curves], axis=1)
        low, high = bootstrap_band(values[:, None], resamples)
        return Band(x, interquartile_mean(values), low, high)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of the same settings together, in the order of their first runs."""
    found: list[list[Run]] = []
    for run in runs:
        group = next((group for group in found if run.settings and group[0].same == run.same), None)
        if group is None:
            found.append([run])
        else:
            group.append(run)
    return labelled(found)


def labelled(groups: Sequence[Sequence[Run]]) -> list[Group]:
    """These groups with labels that say how they differ, in settings that all runs of each group have."""
    names = dict.fromkeys(name for group in groups for name in group[0].same)
    found = {name: [{run.same.get(name, "") for run in group} for group in groups] for name in names}
    differing = [
        name for name, texts in found.items() if max(map(len, texts)) == 1 and any(each != texts[0] for each in texts)
    ]
    texts = [{name: group[0].same.get(name, "-") for name in differing} for group in groups]
    labels = _labels(groups, texts)
    return [Group(label, group, text) for label, group, text in zip(labels, groups, texts, strict=True)]


def _labels(groups: Sequence[Sequence[Run]], texts: Sequence[Mapping[str, str]]) -> list[str]:
    """One label for each group, all different: its env or how its settings differ or, if that is long, a name."""
    envs = [each.get("env", "") for each in texts]
    if len(set(envs)) == len(groups) > 1:
        labels = envs
    elif len(groups) > 1 and all(0 < len(each) <= _MOST_FLAGS for each in texts):
        labels = [", ".join(f"{name}={text}" for name, text in each.items()) for each in texts]
    else:
        labels = [name_of(group) for group in groups]
    return [label if labels.count(label) == 1 else f"{label} ({at})" for at, label in enumerate(labels, 1)]


def name_of(runs: Sequence[Run]) -> str:
    """What the names of runs have in common at their beginning, without a separator at its end; or else the first."""
    names = [run.name for run in runs]
    same = [letters[0] for letters in itertools.takewhile(lambda each: len(set(each)) == 1, zip(*names, strict=False))]
    return names[0] if len(names) == 1 else "".join(same).rstrip("_-. ") or names[0]
