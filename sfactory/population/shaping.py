"""Room: reward shaping, a nested JSON object of an env. In: what an env reports. Out: its numbers, by where they stand.

An env may name the numbers that its reward is made of, as deep as it likes; numbers can be mutated, everything else
(text, True and False, null) stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sfactory.config.hyperparameters import is_number

Shaping = Mapping[str, Any]
Path = tuple[str | int, ...]
_MOST_DEPTH = 20


def shaping_problem(value: object) -> str | None:
    """What is wrong with the reward shaping that an env reports, or None."""
    if not isinstance(value, Mapping):
        return f"must be a mapping of names to numbers or further mappings, not a {type(value).__name__}"
    return _problem(value, ())


def _problem(value: object, path: Path) -> str | None:
    where = ".".join(map(str, path))
    if len(path) > _MOST_DEPTH:
        return f"is nested more than {_MOST_DEPTH} deep at {where}"
    if isinstance(value, Mapping):
        strange = [key for key in value if not isinstance(key, str)]
        if strange:
            return f"has the key {strange[0]!r}{f' at {where}' if where else ''}; keys must be text"
    if isinstance(value, Mapping | list | tuple):
        found = (_problem(inner, (*path, key)) for key, inner in _items(value))
        return next((text for text in found if text is not None), None)
    if value is None or isinstance(value, bool | str) or is_number(value):
        return None
    return f"holds {value!r} at {where}; a value must be a finite number, text, True, False or None"


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, float]]:
    """Every number of a reward shaping with the keys that lead to it."""
    if isinstance(value, Mapping | list | tuple):
        for key, inner in _items(value):
            yield from leaves(inner, (*path, key))
    elif isinstance(value, int | float) and is_number(value):
        yield path, value


def changed(value: Any, default: Any, change: Callable[[float, float], float]) -> Any:
    """``value`` with ``change(number, default's number)`` in place of each number.

    Numbers whose default is missing, no number, 0, or of the other sign stay, and so does the structure.
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
