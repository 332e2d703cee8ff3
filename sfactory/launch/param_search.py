"""Settings to try: lists, grids and random searches, which always give the same runs, on every machine."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, object]
# One flag, or several that vary together and have a tuple of values each time.
Key = str | tuple[str, ...]

_DIGITS = 4  # significant digits of random numbers, which become part of names; more where the range is narrow
_MAX_DRAWS = 100  # draws in a row that give nothing new, per combination, before a search gives up
_MOST_RUNS = 10_000  # of one experiment: each of their command lines is checked before the first one starts


@dataclass(frozen=True)
class ParamList:
    """These combinations; by default one run that sets nothing."""

    listed: Sequence[Values] = ({},)

    def problems(self) -> list[str]:
        """Problems of the declaration."""
        if not isinstance(self.listed, Sequence) or not all(isinstance(values, Mapping) for values in self.listed):
            return ["a list has one mapping of flag names to values for each run"]
        if problem := _size_problem("the list has", len(self.listed)):
            return [problem]
        return [] if self.listed else ["the list is empty; give at least one combination, {} for one that sets nothing"]

    def combinations(self) -> list[dict[str, object]]:
        """The settings of each run; only valid if there are no problems."""
        return [dict(values) for values in self.listed]


@dataclass(frozen=True)
class ParamGrid:
    """All combinations of values: ``ParamGrid([("gamma", [0.9, 0.99]), (("batch_size", "rollout"), [(256, 16)])])``.

    A mapping works too. The values of a tuple of flags are tuples with one value for each; they vary together.
    """

    grid: Sequence[tuple[Key, Sequence[Any]]] | Mapping[Any, Sequence[Any]]

    def problems(self) -> list[str]:
        """Problems of the declaration."""
        try:
            axes = self._axes()
        except (TypeError, ValueError):
            return ["a grid has pairs of a flag, or a tuple of flags, and a list of values"]
        problems = _key_problems([key for key, _ in axes])
        size = math.prod(len(values) for _, values in axes if isinstance(values, Sequence))
        if not problems and (problem := _size_problem("the grid has", size)):
            return [problem]
        for key, values in [] if problems else axes:
            problems += [f"grid of {_shown(key)}: {text}" for text in _value_problems(key, values)]
        return problems

    def combinations(self) -> list[dict[str, object]]:
        """The settings of each run; only valid if there are no problems."""
        keys, axes = [key for key, _ in self._axes()], [values for _, values in self._axes()]
        return [_settings(keys, chosen) for chosen in itertools.product(*axes)]

    def _axes(self) -> list[tuple[Key, Sequence[Any]]]:
        pairs = self.grid.items() if isinstance(self.grid, Mapping) else self.grid
        return [(key, values) for key, values in pairs]


@dataclass(frozen=True)
class Uniform:
    """Real numbers from ``low`` to ``high``, uniformly distributed."""

    low: float
    high: float


class LogUniform(Uniform):
    """Positive numbers from ``low`` to ``high`` with uniformly distributed logarithms."""


class IntUniform(Uniform):
    """Whole numbers from ``low`` to ``high``, both included, uniformly distributed."""


@dataclass(frozen=True)
class Choice:
    """One of ``values``, each with the same probability."""

    values: Sequence[Any]


Distribution = Uniform | Choice


def _draw(distribution: Distribution, source: random.Random) -> object:
    """A value; the same state of ``source`` gives the same one."""
    match distribution:
        case Choice(values):
            return values[source.randrange(len(values))]
        case IntUniform(low, high):
            return source.randint(int(low), int(high))
        case LogUniform(low, high):
            number = math.exp(source.uniform(math.log(low), math.log(high)))
        case Uniform(low, high):
            number = source.uniform(low, high)
    # In a narrow range the first digits are always the same: as many more are kept, but for one.
    same = int(math.log10(max(1.0, max(abs(low), abs(high)) / (high - low))))
    digits = _DIGITS + max(0, same - 1)
    return min(max(float(f"{number:.{digits}g}"), low), high)  # with few digits, but within the range


def _distribution_problems(key: Key, distribution: object) -> list[str]:
    match distribution:
        case Choice(values):
            return _value_problems(key, values)
        case Uniform(low, high):
            kinds = int if isinstance(distribution, IntUniform) else (int, float)
            for bound in (low, high):
                if isinstance(bound, bool) or not isinstance(bound, kinds) or not math.isfinite(bound):
                    return [f"the bound {bound!r} must be a {'whole' if kinds is int else 'finite'} number"]
            if low >= high:
                return [f"low ({low}) must be less than high ({high})"]
            if isinstance(distribution, LogUniform) and low <= 0:
                return [f"low is {low}: must be greater than 0, for its logarithm"]
            return [] if isinstance(key, str) else ["flags that vary together are drawn from a Choice"]
    return [f"{distribution!r} is not a distribution"]


@dataclass(frozen=True)
class RandomSearch:
    """``count`` different combinations, drawn: ``RandomSearch({"learning_rate": LogUniform(1e-5, 1e-3)}, count=20)``.

    The value of a flag in draw i depends only on ``seed``, i and the flag's name: a larger count keeps the earlier
    draws, and another flag does not change the values of the others.
    """

    parameters: Mapping[Any, Distribution]  # keys are ``Key``
    count: int
    seed: int = 0

    def problems(self) -> list[str]:
        """Problems of the declaration."""
        if not isinstance(self.parameters, Mapping) or not self.parameters:
            return ["a random search needs at least one flag with a distribution"]
        problems = _key_problems(list(self.parameters))
        for name, number in (("count", self.count), ("seed", self.seed)):
            if not isinstance(number, int) or isinstance(number, bool):
                problems.append(f"random search: {name}={number!r} must be a whole number")
        if not problems and self.count < 1:
            problems.append(f"random search: count={self.count} must be at least 1")
        if not problems and (problem := _size_problem("random search: count is", self.count)):
            problems.append(problem)
        for key, distribution in self.parameters.items():
            found = _distribution_problems(key, distribution)
            problems += [f"random search, {_shown(key)}: {text}" for text in found]
        if not problems and len(self.combinations()) < self.count:
            problems.append(
                f"random search: count={self.count}, but only {len(self.combinations())} different combinations were "
                "found; lower the count, or use a grid"
            )
        return problems

    def combinations(self) -> list[dict[str, object]]:
        """The settings of each run; only valid if there are no problems."""
        drawn: dict[str, dict[str, object]] = {}
        newest = 0  # index of the last draw that gave something new
        for index in itertools.count():
            # random hashes a text seed in the same way in all versions and on all machines.
            sources = [random.Random(f"{self.seed}/{index}/{_shown(key)}") for key in self.parameters]
            values = _settings(self.parameters, map(_draw, self.parameters.values(), sources))
            key = json.dumps(values, default=str, sort_keys=True)
            if key not in drawn:
                drawn[key], newest = values, index
            if len(drawn) == self.count or index - newest > _MAX_DRAWS * len(drawn):
                break
        return list(drawn.values())


Parameters = ParamList | ParamGrid | RandomSearch


def seeds(count: int) -> list[int]:
    """``count`` seeds, always the same ones: 1111, 2222, ... Raises ValueError for more than an experiment may have."""
    if problem := _size_problem("seeds: count is", count):
        raise ValueError(problem)
    return [1111 * (index + 1) for index in range(count)]


def _shown(key: Key) -> str:
    return key if isinstance(key, str) else ", ".join(map(str, key))


def _settings(keys: Iterable[Key], chosen: Iterable[Any]) -> dict[str, object]:
    """The value of each flag; ``chosen``: a value for each key, or a tuple of values for a tuple of flags."""
    settings: dict[str, object] = {}
    for key, value in zip(keys, chosen, strict=True):
        settings |= {key: value} if isinstance(key, str) else dict(zip(key, value, strict=True))
    return settings


def _size_problem(what: str, count: int) -> str:
    """Why ``count`` runs are too many, "" if they are not; asked before anything is expanded."""
    return "" if count <= _MOST_RUNS else f"{what} {count:,}, and an experiment at most {_MOST_RUNS:,} runs; lower it"


def _key_problems(keys: Sequence[object]) -> list[str]:
    problems: list[str] = []
    seen: set[str] = set()
    for key in keys:
        names = key if isinstance(key, tuple) else (key,)
        if not names or not all(isinstance(name, str) for name in names):
            problems.append(f"{key!r}: must be the name of a flag, or a tuple of names")
            continue
        for name in map(str, names):
            if name in seen:
                problems.append(f"{name}: is varied twice")
            seen.add(name)
    return problems


def _value_problems(key: Key, values: object) -> list[str]:
    """Problems of the values of a flag, or of flags that vary together."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        return [f"{values!r} must be a list of values"]
    if not values:
        return ["has no values"]
    if isinstance(key, str):
        return []
    wrong = [value for value in values if not isinstance(value, list | tuple) or len(value) != len(key)]
    return [f"{value!r} must be {len(key)} values" for value in wrong]
