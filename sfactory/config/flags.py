"""Describes flags, and converts their values from and to text and data.

The command line, config files, saved runs and ``--help`` all use it, so a value means the same in all four places.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import math
import os
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sfactory.atomic import MOST_DEPTH, parse_json
from sfactory.config.field import FlagInfo, flag_info
from sfactory.config.schema import Config

_SHOWN_CHARACTERS = 120
# int(Decimal("1e999999999")) would build that many digits; nothing countable here needs more than these.
_MOST_DIGITS = 30
# Ends of whole numbers, as in 10k and 2.5M, and their powers of ten.
_UNITS = {"k": 3, "m": 6, "b": 9}
_NO_LIMIT = 10**9  # defaults from here on stand for none, and are no examples
_OF_BOOLEANS = {"true": "on", "false": "off"}  # which YAML makes of these words
_MOST_DEPTH = 50  # of brackets in a value, so that every file of a run can hold it


@dataclass(frozen=True)
class Flag:
    """One setting. ``section`` is its field in Config, ``type`` its annotation."""

    name: str
    section: str
    type: object
    default: object
    info: FlagInfo

    @property
    def is_list(self) -> bool:
        """Whether the value is a list of elements."""
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted words, or () if the flag is not a choice between words."""
        return tuple(str(word) for word in get_args(self.type)) if get_origin(self.type) is Literal else ()

    def example(self) -> str:
        """An assignment that would be right, such as ``--gamma=0.99``."""
        if self.default == ():
            return f"--{self.name} {'A B' if str in get_args(self.type) else '1 2'}"
        if self.default is None:
            return assigned(self.name, "..." if _without_none(self.type) is str else 1)
        is_no_limit = isinstance(self.default, int | float) and self.default >= _NO_LIMIT
        return assigned(self.name, 1000 if is_no_limit else self.default)


def assigned(name: str, value: object) -> str:
    """``--name=value`` as a user would type it, with lists as ``--name 64 64``."""
    text = value if isinstance(value, str) else value_text(value)
    joint = " " if isinstance(value, tuple) and value else "="
    return f"--{name}{joint}{shown(text)}"


def shown(text: str) -> str:
    """``text`` for one line of an error: control characters escaped, cut if very long."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return clean if len(clean) <= _SHOWN_CHARACTERS else f"{clean[:_SHOWN_CHARACTERS]}..."


_LEAST_PART = 4  # letters of a name's part that suggest it


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """``; did you mean x?`` with the nearest of ``known``, or "" if none is near."""
    candidates, typed = sorted(set(known)), name.casefold()
    begun = [word for word in candidates if typed and word.casefold().startswith(typed)]
    within = [word for word in candidates if len(typed) >= _LEAST_PART and typed in word.casefold()]
    near = begun[:3] or within[:3] or difflib.get_close_matches(name, candidates, n=1)
    return f"; did you mean {' or '.join(prefix + word for word in near)}?" if near else ""


def value_text(value: object) -> str:
    """A value as the command line writes it, without its flag."""
    if isinstance(value, tuple):
        return " ".join(value_text(element) for element in value)
    if isinstance(value, Mapping):
        return json.dumps(dict(value), default=str)
    return str(value)


def utf8_text(value: object) -> str:
    """``value_text`` as UTF-8 can have it: the bytes of a path that are no text are escaped."""
    return value_text(value).encode(errors="backslashreplace").decode()


def flags_of(section: str, section_type: type[Any]) -> dict[str, Flag]:
    """The flags that a dataclass declares, by name."""
    hints, blank = get_type_hints(section_type), section_type()
    return {
        field.name: Flag(field.name, section, hints[field.name], getattr(blank, field.name), flag_info(field))
        for field in dataclasses.fields(section_type)
    }


@functools.cache
def all_flags() -> Mapping[str, Flag]:
    """Every flag of every section, by name, in the order of the schema."""
    flags: dict[str, Flag] = {}
    for section, section_type in get_type_hints(Config).items():
        own = flags_of(section, section_type)
        assert not own.keys() & flags.keys(), f"{section} declares a flag of another section"
        flags.update(own)
    return types.MappingProxyType(flags)


def values_of(config: Config) -> dict[str, object]:
    """All values of a config, flat, by flag name."""
    return {name: getattr(getattr(config, flag.section), name) for name, flag in all_flags().items()}


def value_of(config: Config, name: str) -> Any:
    """The value of one flag."""
    return getattr(getattr(config, all_flags()[name].section), name)


def config_of(values: Mapping[str, object]) -> Config:
    """The config that holds ``values``; flags that are not among them keep their schema defaults."""
    sections: dict[str, Any] = {}
    for section, section_type in get_type_hints(Config).items():
        own = {name: value for name, value in values.items() if all_flags()[name].section == section}
        sections[section] = section_type(**own)
    return Config(**sections)


def config_with(config: Config, values: Mapping[str, object]) -> Config:
    """``config`` with other ``values`` of some flags."""
    return config_of({**values_of(config), **values})


def type_text(flag: Flag) -> str:
    """The type of a flag in words, for ``--help``."""
    return "|".join(flag.choices) or _type_name(flag.type)


def _type_name(kind: object) -> str:
    inner = _without_none(kind)
    if inner is not None:
        return f"{_type_name(inner)} or None"
    if get_origin(kind) is tuple:
        return f"list of {_type_name(get_args(kind)[0])}"
    if _is_mapping(kind):
        return "JSON object"
    assert isinstance(kind, type), kind
    return {bool: "True|False", int: "int", float: "float", str: "text"}[kind]


def coerce(flag: Flag, data: object) -> object:
    """The value of ``data``: text of a command line, or data of a YAML or JSON file or of a family's defaults.

    Text in files is read as on the command line. A flag of text takes text only: YAML has already turned an unquoted
    007 or no into something else. None is never text: see ``_nothing``. A shell expands no ``~`` behind ``=``, so paths
    are expanded here. Raises ValueError with what would be right. Ranges are not checked.
    """
    if _is_none(data) and _without_none(flag.type) is None:
        data = _nothing(flag, data)
    return _coerced(flag, flag.type, data)


def _is_none(data: object) -> bool:
    return data is None or (isinstance(data, str) and data.lower() == "none")


def _nothing(flag: Flag, data: object) -> object:
    """What None or "None", ``data``, means where the type has no None: its word none, or empty if that is the default.

    Raises ValueError for other flags of text, lists and objects.
    """
    if "none" in flag.choices:
        return "none"
    if flag.default in ("", (), {}):
        return flag.default
    if flag.type is str or flag.is_list or _is_mapping(flag.type):
        empty = f", or write --{flag.name}= for an empty list" if flag.is_list else ""
        raise ValueError(f"is no value of this flag; leave it out{empty}, or give one, as {flag.example()}")
    return data


@dataclass
class Reading:
    """What one source gives: values of flags, and its problems. ``broken``: flags with a value that is unreadable."""

    values: dict[str, object] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    broken: set[str] = dataclasses.field(default_factory=set)

    def take(self, flag: Flag, data: object, where: str = "") -> None:
        """Store the value of ``data``, or its problem, which ends with ``where``."""
        try:
            self.values[flag.name] = coerce(flag, data)
        except ValueError as error:
            self.problems.append(f"{assigned(flag.name, value_text(data))}: {error}{where}")
            self.broken.add(flag.name)


def is_of_type(kind: object, value: object) -> bool:
    """Whether ``value`` already has the type of a flag's annotation ``kind``."""
    inner = _without_none(kind)
    if inner is not None:
        return value is None or is_of_type(inner, value)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(is_of_type(get_args(kind)[0], element) for element in value)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if _is_mapping(kind):
        return isinstance(value, Mapping)
    if isinstance(value, bool):
        return kind is bool
    assert isinstance(kind, type), kind
    return isinstance(value, int | float if kind is float else kind)


def strict_json(text: str | bytes, most_depth: int = MOST_DEPTH) -> object:
    """JSON data; raises ValueError for repeated keys, NaN, Infinity, and numbers too large for a float, too."""
    hooks = {"object_pairs_hook": _unique_pairs, "parse_constant": _no_constant, "parse_float": _finite}
    return parse_json(text, most_depth, **hooks)


def _unique_pairs(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} stands twice")
        result[key] = value
    return result


def _finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise ValueError(f"{word} is too large for a number of 64 bits")
    return number


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


@functools.cache
def _is_mapping(kind: object) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


@functools.cache
def _without_none(kind: object) -> object | None:
    """T of ``T | None``; None where ``kind`` is not of that form."""
    if get_origin(kind) not in (Union, types.UnionType):
        return None
    inner: list[object] = [part for part in get_args(kind) if part is not types.NoneType]
    assert len(inner) == 1, f"{kind} is not a type that a flag can have"
    return inner[0]


def _coerced(flag: Flag, kind: object, data: object) -> object:
    """The value of ``data`` for a flag, or an element of it, of type ``kind``."""
    inner = _without_none(kind)
    if inner is not None:
        return None if _is_none(data) else _coerced(flag, inner, data)
    if get_origin(kind) is tuple:
        listed = _elements(data) if isinstance(data, str) else data
        elements = listed if isinstance(listed, list | tuple) else (listed,)
        return tuple(_coerced(flag, get_args(kind)[0], element) for element in elements)
    if get_origin(kind) is Literal:
        word = _OF_BOOLEANS.get(str(data).lower(), data)
        if word not in flag.choices:
            raise ValueError(f"must be one of {', '.join(flag.choices)}")
        return word
    if _is_mapping(kind):
        return _json_object(flag, data)
    if is_of_type(kind, data) and kind is not float:
        return os.path.expanduser(str(data)) if flag.info.path else data
    if kind is str:
        raise ValueError("must be text: put it in quotes")
    if kind is bool:
        text = str(data)
        if text.lower() not in ("true", "false"):
            raise ValueError(f"must be True or False, for example {flag.example()}")
        return text.lower() == "true"
    return _integer(flag, str(data)) if kind is int else _real(flag, str(data))


def _elements(text: str) -> object:
    """The elements of a list: those of a JSON array, which may have spaces, or else words."""
    if text.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return strict_json(text, _MOST_DEPTH)
    return text.split()


def _integer(flag: Flag, text: str) -> int:
    wrong = ValueError(f"must be a whole number{_or_none(flag)}, for example {flag.example()}")
    unit = _UNITS.get(text[-1:].lower())
    try:
        number = Decimal((text if unit is None else f"{text[:-1]}e{unit}").replace("_", ""))
    except InvalidOperation:
        raise wrong from None
    if not number.is_finite():
        raise ValueError("must be a finite whole number")
    if number.adjusted() > _MOST_DIGITS:
        raise ValueError("is too large; the largest accepted whole number is 2^63 - 1")
    if number != number.to_integral_value():
        raise wrong
    return int(number)


def _real(flag: Flag, text: str) -> float:
    try:
        return float(text)
    except (ValueError, OverflowError):
        raise ValueError(f"must be a number{_or_none(flag)}, for example {flag.example()}") from None


def _or_none(flag: Flag) -> str:
    return "" if _without_none(flag.type) is None else " or none"


def _json_object(flag: Flag, data: object) -> dict[str, object]:
    """A JSON object from text, or from data that JSON can hold unchanged."""
    advice = f"""must be a JSON object, for example --{flag.name}='{{"key": 1}}'"""
    try:
        text = data if isinstance(data, str) else json.dumps(data, allow_nan=False)
        result = strict_json(text, _MOST_DEPTH)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{advice} ({error})") from None
    if not isinstance(result, dict) or (isinstance(data, Mapping) and result != dict(data)):
        raise ValueError(advice)
    return result
