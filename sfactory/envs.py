"""Lists families of envs, some names of each, and what they lack: ``python -m sfactory.envs [FAMILY]``.

With the name of a family it lists all the names that the family has to suggest, one a line, each with the rows of
docs/results.md that its defaults were measured by. The list is on stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from sfactory.config.argv import asks_for_help
from sfactory.config.env_families import EnvFamily, lack_of_family, load_families
from sfactory.config.flags import did_you_mean
from sfactory.config.help_text import called_as
from sfactory.errors import ConfigError
from sfactory.packages import other_versions
from sfactory.process.command import Command

_SHOWN = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-envs") as command:
        if asks_for_help(arguments):
            print(f"{_usage()}\n\nLists families of envs, or names of FAMILY and the rows that measured them.")
            return command.exit_code
        families, warnings = load_families()
        for warning in warnings:
            print(warning, file=sys.stderr)
        command.print_result(lambda: "\n".join(_lines(families, arguments)))
    return command.exit_code


def _usage() -> str:
    return f"usage: {called_as('envs')} [FAMILY]"


def _lines(families: Sequence[EnvFamily], arguments: Sequence[str]) -> Iterable[str]:
    if not arguments:
        return chain.from_iterable(_summary(family) for family in families)
    known = {family.name: family for family in families}
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise ConfigError([_usage()])
    if arguments[0] not in known:
        raise ConfigError([f"there is no family {arguments[0]!r}{did_you_mean(arguments[0], known)}; {_usage()}"])
    return _measured(known[arguments[0]])


def _measured(family: EnvFamily) -> Iterator[str]:
    rows: Mapping[str, Sequence[str]] = getattr(family, "rows", {})
    names = list(family.names())
    width = max(map(len, names), default=0)
    for name in names:
        measured = f"row {' and '.join(rows[name])} of" if name in rows else "not measured in"
        yield f"{name:<{width}} {measured} docs/results.md"


def _summary(family: EnvFamily) -> Iterator[str]:
    names = list(family.names())
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    lack = lack_of_family(family)
    yield f"{family.name:<16} {'missing' if lack else 'installed':<10} {shown}"
    others = other_versions(getattr(family, "extra", ""))
    for line in [lack] if lack else [*others, *getattr(family, "lacks", list)()]:
        yield f"{'':<16} {line}"


if __name__ == "__main__":
    sys.exit(main())
