"""Room: flags as Python values. In: a mapping of flag names to values. Out: the words of a command line."""

from __future__ import annotations

import numbers
import os
import re
from collections.abc import Mapping

from sfactory.config.flags import shown, value_text
from sfactory.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def words_of(values: Mapping[str, object]) -> list[str]:
    """The words that set these flags. Lists and tuples are lists, mappings JSON objects, None is ``none``.

    Raises ConfigError with a line for each value that no flag can have. Whether there are such flags, and whether they
    take these values, is for whoever reads the words.
    """
    words: list[str] = []
    problems: list[str] = []
    for name, value in values.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(f"{shown(repr(name))}: must be the name of a flag, without its dashes")
        elif not _is_plain(value):
            kind = type(value).__qualname__
            problems.append(
                f"--{name}: a {kind} cannot be given; give a bool, a number, text, a list, a mapping or None"
            )
        else:
            words += assignment(name, value)
    if problems:
        raise ConfigError(problems)
    return words


def assignment(name: str, value: object) -> list[str]:
    """The words that set one flag."""
    if isinstance(value, list | tuple) and value:
        return [f"--{name}", *(value_text(element) for element in value)]
    return [f"--{name}={value_text(tuple(value) if isinstance(value, list) else value)}"]


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(element) and not isinstance(element, list | tuple | Mapping) for element in value)
    return value is None or isinstance(value, bool | numbers.Real | str | os.PathLike | Mapping)
