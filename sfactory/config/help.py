"""Room: the text of ``--help``. In: the schema and the effective defaults of an environment. Out: text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import get_type_hints

from sfactory.config.check import range_text
from sfactory.config.flags import Flag, all_flags, shown, type_text, value_text
from sfactory.config.schema import Config

_WIDTH = 110
_INDENT = " " * 6


def help_text(prog: str, family: str | None, family_defaults: Mapping[str, object]) -> str:
    """All flags by section, with type, default, range and meaning.

    ``family_defaults`` are the defaults that the env family ``family`` sets for the environment at hand.
    """
    lines = [
        f"usage: python -m {prog} --env=ENV [--flag=value ...]",
        "",
        "Flags are given as --name=value or --name value, with dashes or underscores; booleans as True or False;",
        "lists as --name 64 64. No flag can be abbreviated. Of several sources the last one wins: the defaults",
        "below, the saved run that is resumed, the file given with --config, the command line.",
        "",
        "  --config FILE",
        f"{_INDENT}YAML or JSON file with a flat mapping of flag names to values",
    ]
    for section, section_type in get_type_hints(Config).items():
        lines += ["", f"{section}: {(section_type.__doc__ or '').strip()}"]
        for flag in all_flags().values():
            if flag.section == section:
                lines += _flag_lines(flag, family, family_defaults)
    return "\n".join(lines) + "\n"


def _flag_lines(flag: Flag, family: str | None, family_defaults: Mapping[str, object]) -> list[str]:
    facts = [_default_text(flag, family, family_defaults)]
    if range_text(flag.info):
        facts.append(("each " if flag.is_list else "") + range_text(flag.info))
    text = f"{flag.info.help} [{'; '.join(facts)}]"
    body = textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    return [f"  --{flag.name} {type_text(flag)}", *body]


def _default_text(flag: Flag, family: str | None, family_defaults: Mapping[str, object]) -> str:
    if flag.name in family_defaults:
        return f"default {_shown_value(family_defaults[flag.name])}, from env family {family}"
    return f"default {_shown_value(flag.default)}"


def _shown_value(value: object) -> str:
    return shown(value_text(value)) or "empty"
