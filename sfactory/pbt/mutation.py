"""Mutates hyperparameters and reward shaping within their ranges. Pure.

Reward shaping is a nested JSON object in which an env names the numbers that its reward is computed from. Numbers can
be mutated; everything else (text, True and False, null) stays unchanged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sfactory.config.field import How
from sfactory.config.hyperparameters import Hyperparameter, is_number
from sfactory.config.schema import PopulationConfig

Shaping = Mapping[str, Any]
Path = tuple[str | int, ...]
_MAX_DEPTH = 20


def shaping_problem(value: object, path: Path = ()) -> str | None:
    """The problem with the reward shaping of an env, or with its part at ``path``; None if there is none."""
    where = ".".join(map(str, path))
    if not path and not isinstance(value, Mapping):
        return f"must be a mapping of names to numbers or further mappings, not a {type(value).__name__}"
    if len(path) > _MAX_DEPTH:
        return f"is nested more than {_MAX_DEPTH} deep at {where}"
    if isinstance(value, Mapping):
        invalid = [key for key in value if not isinstance(key, str)]
        if invalid:
            return f"has the key {invalid[0]!r}{f' at {where}' if where else ''}; keys must be text"
    if isinstance(value, Mapping | list | tuple):
        problems = (shaping_problem(inner, (*path, key)) for key, inner in _items(value))
        return next((text for text in problems if text is not None), None)
    if value is None or isinstance(value, bool | str) or is_number(value):
        return None
    return f"holds {value!r} at {where}; a value must be a finite number, text, True, False or None"


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, float]]:
    """Every number of a reward shaping with its path of keys."""
    if isinstance(value, Mapping | list | tuple):
        for key, inner in _items(value):
            yield from leaves(inner, (*path, key))
    elif isinstance(value, int | float) and is_number(value):
        yield path, value


def changed(value: Any, default: Any, change: Callable[[float, float], float]) -> Any:
    """``value`` with each number replaced by ``change(number, default's number)``.

    A number stays if it is 0 or if its default is missing, not a number, 0, or of the other sign.
    """
    if isinstance(value, Mapping):
        others = default if isinstance(default, Mapping) else {}
        return {key: changed(inner, others.get(key), change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        pairs = default if isinstance(default, list | tuple) and len(default) == len(value) else [None] * len(value)
        return [changed(inner, other, change) for inner, other in zip(value, pairs, strict=True)]
    if is_number(value) and is_number(default) and value and default and (value < 0) == (default < 0):
        return change(value, default)
    return value


def _items(value: Mapping[Any, Any] | Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    yield from value.items() if isinstance(value, Mapping) else enumerate(value)


Values = Mapping[str, float]
# Share of mutations that reset a value to that of the flags.
RESET_PROBABILITY = 0.01
# A number of a reward shaping stays within the env's own number times this and divided by this.
SHAPING_RANGE = 100.0


def mutated(
    values: Values,
    declared: Sequence[Hyperparameter],
    options: PopulationConfig,
    rng: np.random.Generator,
    legal: Callable[[str, Values], bool] = lambda name, values: True,
    at_least_one: bool = False,
) -> dict[str, float]:
    """``values`` with each of the ``declared`` hyperparameters mutated with probability ``pbt_mutation_rate``.

    legal: whether the values with a new one of ``name`` are valid together; otherwise the old value stays.
    at_least_one: mutate a random one if none was chosen (unless the rate is 0).
    """
    chosen = [each for each in declared if rng.random() < options.pbt_mutation_rate]
    if at_least_one and declared and options.pbt_mutation_rate and not chosen:
        chosen = [declared[int(rng.integers(len(declared)))]]
    result = dict(values)
    for each in chosen:
        proposed = {**result, each.name: new_value(result[each.name], each, options, rng)}
        if legal(each.name, proposed):
            result = proposed
    return result


def new_value(value: float, of: Hyperparameter, options: PopulationConfig, rng: np.random.Generator) -> float:
    """A mutation of ``value`` within the range of the hyperparameter, even if ``value`` is outside."""
    if rng.random() < RESET_PROBABILITY:
        return within_range(of.default, of)
    factor = _factor(options, rng)
    match of.how:
        case How.FACTOR:
            found = _stepped(value, value * factor) if of.whole else value * factor
        case How.ONE_MINUS:
            found = 1 - (1 - value) * factor
        case How.DOUBLE:
            found = _doubled(int(value), factor > 1, of)
        case How.UNIFORM:
            share = float(rng.random())
            found = math.floor(_between(of.low, of.high + 1, share)) if of.whole else _between(of.low, of.high, share)
        case How.LOG_UNIFORM:
            found = math.exp(_between(math.log(of.low), math.log(of.high), float(rng.random())))
    return within_range(found, of)


def mutated_shaping(shaping: Shaping, default: Shaping, options: PopulationConfig, rng: np.random.Generator) -> Shaping:
    """A reward shaping with each of its numbers mutated with probability ``pbt_mutation_rate``, see ``changed``.

    Numbers keep their sign and stay within SHAPING_RANGE of the numbers in ``default``.
    """

    def change(number: float, origin: float) -> float:
        if rng.random() >= options.pbt_mutation_rate:
            return number
        if rng.random() < RESET_PROBABILITY:
            return origin
        size = abs(float(origin))
        low = max(size / SHAPING_RANGE, math.ulp(0.0))
        high = min(size * SHAPING_RANGE, sys.float_info.max)
        return math.copysign(min(max(abs(number) * _factor(options, rng), low), high), number)

    result: Shaping = changed(shaping, default, change)
    return result


def within_range(value: float, of: Hyperparameter) -> float:
    """``value``, or the nearest end of the range."""
    bounded = min(max(value, of.low), of.high)
    return round(bounded) if of.whole else float(bounded)


def _factor(options: PopulationConfig, rng: np.random.Generator) -> float:
    """A factor above or below 1, with equal probability."""
    factor = float(rng.uniform(options.pbt_perturb_min, options.pbt_perturb_max))
    return factor if rng.random() < 0.5 else 1 / factor


def _between(low: float, high: float, share: float) -> float:
    # Not low + share * (high - low): the difference may overflow.
    return low * (1 - share) + high * share


def _stepped(value: float, moved: float) -> int:
    """The whole number nearest to ``moved`` other than ``value``: small numbers would never change otherwise."""
    nearest = round(moved)
    return nearest if nearest != value else round(value) + (1 if moved > value else -1)


def _doubled(value: int, up: bool, of: Hyperparameter) -> int:
    """Twice or half of ``value``; the other one if the drawn one is out of range or not a whole number."""
    ways = [value * 2, value // 2 if value % 2 == 0 else value]
    found = [way for way in (ways if up else ways[::-1]) if of.low <= way <= of.high and way != value]
    return found[0] if found else value
