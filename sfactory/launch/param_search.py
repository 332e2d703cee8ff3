"""Room: which settings are tried. In: lists, grids, ranges with a seed. Out: settings by flag name, one mapping a run.

Nothing here depends on anything but what was declared: the same declaration gives the same runs, on every machine.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Values = Mapping[str, object]
# One flag, or several that vary jointly and then have a tuple of values each time.
Key = str | tuple[str, ...]

_DIGITS = 4  # of a number that is drawn: enough to search with, short enough for a name
_PATIENCE = 100  # draws for each that is wanted, before a search is found to have no more combinations


class Parameters(Protocol):
    """What an experiment tries."""

    def problems(self) -> list[str]:
        """What is wrong with the declaration; then it has no combinations."""
        ...

    def combinations(self) -> list[dict[str, object]]:
        """The settings of each run."""
        ...


@dataclass(frozen=True)
class ParamList:
    """These combinations; by default one run that sets nothing."""

    listed: Sequence[Values] = ({},)

    def problems(self) -> list[str]:
        """See ``Parameters``."""
        if not isinstance(self.listed, Sequence) or not all(isinstance(values, Mapping) for values in self.listed):
            return ["a list holds one mapping of flag names to values for each run"]
        return [] if self.listed else ["the list is empty; give at least one combination, {} for one that sets nothing"]

    def combinations(self) -> list[dict[str, object]]:
        """See ``Parameters``."""
        return [dict(values) for values in self.listed]


@dataclass(frozen=True)
class ParamGrid:
    """All combinations of values: ``ParamGrid([("gamma", [0.9, 0.99]), (("batch_size", "rollout"), [(256, 16)])])``.

    A mapping of the same will do. The values of a tuple of flags are tuples of as many values, which vary jointly.
    """

    grid: Sequence[tuple[Key, Sequence[Any]]] | Mapping[Any, Sequence[Any]]

    def problems(self) -> list[str]:
        """See ``Parameters``."""
        try:
            axes = self._axes()
        except (TypeError, ValueError):
            return ["a grid holds pairs of a flag, or a tuple of flags, and a list of values"]
        problems = _key_problems([key for key, _ in axes])
        for key, values in [] if problems else axes:
            if isinstance(values, str) or not isinstance(values, Sequence):
                problems.append(f"grid of {_shown(key)}: {values!r} must be a list of values")
            elif not values:
                problems.append(f"grid of {_shown(key)}: has no values")
            else:
                problems += [f"grid of {text}" for text in _joint_problems(key, values)]
        return problems

    def combinations(self) -> list[dict[str, object]]:
        """See ``Parameters``."""
        axes = [[_assigned(key, value) for value in values] for key, values in self._axes()]
        return [_merged(chosen) for chosen in itertools.product(*axes)]

    def _axes(self) -> list[tuple[Key, Sequence[Any]]]:
        pairs = self.grid.items() if isinstance(self.grid, Mapping) else self.grid
        return [(key, values) for key, values in pairs]


class Distribution(Protocol):
    """What a value is drawn from."""

    def problem(self) -> str | None:
        """What is wrong with it."""
        ...

    def draw(self, source: random.Random) -> object:
        """A value; the same state of ``source`` gives the same one."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Real numbers from ``low`` to ``high``, each as probable as any other."""

    low: float
    high: float

    def problem(self) -> str | None:
        """See ``Distribution``."""
        return _range_problem(self.low, self.high)

    def draw(self, source: random.Random) -> object:
        """See ``Distribution``."""
        return _rounded(source.uniform(self.low, self.high), self.low, self.high)


@dataclass(frozen=True)
class LogUniform:
    """Positive numbers from ``low`` to ``high`` whose logarithms are each as probable as any other."""

    low: float
    high: float

    def problem(self) -> str | None:
        """See ``Distribution``."""
        problem = _range_problem(self.low, self.high)
        return problem or (None if self.low > 0 else f"low is {self.low}: must be greater than 0, for its logarithm")

    def draw(self, source: random.Random) -> object:
        """See ``Distribution``."""
        return _rounded(math.exp(source.uniform(math.log(self.low), math.log(self.high))), self.low, self.high)


@dataclass(frozen=True)
class IntUniform:
    """Whole numbers from ``low`` to ``high``, both included, each as probable as any other."""

    low: int
    high: int

    def problem(self) -> str | None:
        """See ``Distribution``."""
        if not all(isinstance(bound, int) and not isinstance(bound, bool) for bound in (self.low, self.high)):
            return f"the bounds {self.low!r} and {self.high!r} must be whole numbers"
        return _range_problem(self.low, self.high)

    def draw(self, source: random.Random) -> object:
        """See ``Distribution``."""
        return source.randint(self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """One of ``values``, each as probable as any other."""

    values: Sequence[Any]

    def problem(self) -> str | None:
        """See ``Distribution``."""
        if isinstance(self.values, str) or not isinstance(self.values, Sequence):
            return f"{self.values!r} must be a list of values"
        return None if self.values else "has no values to choose from"

    def draw(self, source: random.Random) -> object:
        """See ``Distribution``."""
        return self.values[source.randrange(len(self.values))]


@dataclass(frozen=True)
class RandomSearch:
    """``count`` different combinations, drawn: ``RandomSearch({"learning_rate": LogUniform(1e-5, 1e-3)}, count=20)``.

    What the i-th draw gives to a flag follows from ``seed``, i and the flag's name alone. So a larger count keeps what
    a smaller one has drawn, and a further flag leaves the values of the others as they are.
    """

    parameters: Mapping[Any, Distribution]  # keys are ``Key``: a mapping of text alone would not be one of those
    count: int
    seed: int = 0

    def problems(self) -> list[str]:
        """See ``Parameters``."""
        if not isinstance(self.parameters, Mapping) or not self.parameters:
            return ["a random search needs at least one flag with what to draw it from"]
        problems = _key_problems(list(self.parameters))
        for name in ("count", "seed"):
            if not isinstance(getattr(self, name), int) or isinstance(getattr(self, name), bool):
                problems.append(f"random search: {name}={getattr(self, name)!r} must be a whole number")
        if not problems and self.count < 1:
            problems.append(f"random search: count={self.count} must be at least 1")
        for key, distribution in self.parameters.items():
            if not isinstance(distribution, Uniform | LogUniform | IntUniform | Choice):
                problems.append(f"random search, {_shown(key)}: {distribution!r} is nothing to draw from")
                continue
            problem = distribution.problem()
            if problem is None and isinstance(distribution, Choice):
                problems += [f"random search, {text}" for text in _joint_problems(key, distribution.values)]
            elif problem is None and not isinstance(key, str):
                problem = "flags that vary jointly are drawn from a Choice"
            if problem is not None:
                problems.append(f"random search, {_shown(key)}: {problem}")
        if not problems and len(self._drawn()) < self.count:
            problems.append(
                f"random search: count={self.count}, and only {len(self._drawn())} different combinations were found; "
                "lower the count, or use a grid"
            )
        return problems

    def combinations(self) -> list[dict[str, object]]:
        """See ``Parameters``."""
        return self._drawn()

    def _drawn(self) -> list[dict[str, object]]:
        drawn: dict[str, dict[str, object]] = {}
        for index in range(self.count * _PATIENCE):
            values = self._draw(index)
            drawn.setdefault(json.dumps(values, default=str, sort_keys=True), values)
            if len(drawn) == self.count:
                break
        return list(drawn.values())

    def _draw(self, index: int) -> dict[str, object]:
        # Text as a seed is hashed by random itself, the same way in all versions and on all machines.
        return _merged(
            _assigned(key, distribution.draw(random.Random(f"{self.seed}/{index}/{_shown(key)}")))
            for key, distribution in self.parameters.items()
        )


def seeds(count: int) -> list[int]:
    """So many seeds, always the same ones: 1111, 2222, ..."""
    return [1111 * (index + 1) for index in range(count)]


def _shown(key: Key) -> str:
    return key if isinstance(key, str) else ", ".join(map(str, key))


def _assigned(key: Key, value: Any) -> dict[str, object]:
    return {key: value} if isinstance(key, str) else dict(zip(key, value, strict=True))


def _merged(parts: Any) -> dict[str, object]:
    merged: dict[str, object] = {}
    for part in parts:
        merged.update(part)
    return merged


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


def _joint_problems(key: Key, values: Sequence[Any]) -> list[str]:
    """What is wrong with values of flags that vary jointly."""
    if isinstance(key, str):
        return []
    return [
        f"{_shown(key)}: {value!r} must be {len(key)} values"
        for value in values
        if not isinstance(value, list | tuple) or len(value) != len(key)
    ]


def _range_problem(low: object, high: object) -> str | None:
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            return f"the bound {bound!r} must be a finite number"
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    return None if low < high else f"from {low} to {high} is no range: low must be less than high"


def _rounded(number: float, low: float, high: float) -> float:
    """``number`` in few digits, and still within its range."""
    return min(max(float(f"{number:.{_DIGITS}g}"), low), high)
