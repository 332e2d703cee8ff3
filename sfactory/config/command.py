"""Room: a command beside train. In: a dataclass of its flags, argv. Out: the dataclass, or every problem of the line.

Such a command works on runs that are there, whose own config.json says how environment and network are made, or starts
runs that bring their own flags. So it takes none of train's other flags, and train takes none of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, get_type_hints

from sfactory.config.argv import scan
from sfactory.config.check import find_problems, range_text, value_problem
from sfactory.config.flag import flag_info
from sfactory.config.flags import Flag, assigned, config_of, type_text, value_text
from sfactory.errors import ConfigError

_WIDTH = 110
_INDENT = " " * 6
# Flags that say where the run is; train's rules for their values hold here, too.
_WHERE = ("experiment", "train_dir")
_FORM = "Flags are given as --name=value or --name value, with dashes or underscores; booleans as True or False."

# Flags that do not go together, or have a form of their own: their names, and what is wrong.
Clash = tuple[set[str], str]
Settings = TypeVar("Settings")


class Command(Generic[Settings]):
    """The command line of ``python -m sfactory.<name>``. ``kind``: the dataclass of its flags."""

    def __init__(
        self,
        kind: type[Settings],
        name: str,
        about: str,
        clashes: Callable[[Settings], list[Clash]],
        usage: str = "--experiment=NAME",
    ) -> None:
        """``about``: what ``--help`` says of it; ``usage``: the flag that it cannot do without."""
        self._kind, self._name, self._about, self._clashes, self._usage = kind, name, about, clashes, usage

    @functools.cached_property
    def flags(self) -> Mapping[str, Flag]:
        """Its flags by name."""
        hints = get_type_hints(self._kind)
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self._kind)  # type: ignore[arg-type]
        return types.MappingProxyType(
            {
                field.name: Flag(field.name, self._name, hints[field.name], field.default, flag_info(field))
                for field in fields
            }
        )

    def read(self, argv: Sequence[str], *, prog: str) -> Settings:
        """What ``argv`` (without the program's name) asks for; ``prog`` is the module named in ``--help``.

        Raises ConfigError with every problem there is. With ``--help`` the flags are printed to stdout and
        SystemExit(0) is raised, whatever else is wrong.
        """
        line = scan(argv, self.flags, takes_config=False)
        if line.help:
            print(self._help(prog), end="")
            raise SystemExit(0)
        settings = self._kind(**line.values)
        problems = [*line.problems, *self._value_problems(settings, line.broken)]
        if problems:
            raise ConfigError(problems)
        return settings

    def _value_problems(self, settings: Settings, broken: set[str]) -> list[str]:
        """What is wrong with values that could be read."""
        problems: list[str] = []
        for name, known in self.flags.items():
            value = getattr(settings, name)
            text = None if name in broken else value_problem(known, value)
            if text is not None:
                problems.append(f"{assigned(name, value)}: {text}")
        problems += [text for names, text in self._clashes(settings) if not broken.intersection(names)]
        names = [name for name in _WHERE if name in self.flags]
        where = config_of({name: getattr(settings, name) for name in names})
        return problems + [problem.text for problem in find_problems(where, broken) if problem.flags[0] in names]

    def _help(self, prog: str) -> str:
        lines = [f"usage: python -m {prog} {self._usage} [--flag=value ...]", ""]
        lines += [*textwrap.wrap(f"{self._about} {_FORM}", _WIDTH), ""]
        for known in self.flags.values():
            facts = [f"default {value_text(known.default)}", *filter(None, [range_text(known.info)])]
            text = f"{known.info.help} [{'; '.join(facts)}]"
            lines.append(f"  --{known.name} {type_text(known)}")
            lines += textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        return "\n".join(lines) + "\n"
