"""Formats and prints what ``--help`` shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import get_type_hints

from sfactory.config.flags import Flag, all_flags, shown, type_text, value_text
from sfactory.config.schema import Config

_WIDTH = 110
_INDENT = " " * 6
_FORM = (
    "Flags are given as --name=value or --name value, with dashes or underscores; booleans as True or False (or alone, "
    "for True); whole numbers also as 10k, 2.5M or 1e6"
)
_FORM_OF_TRAIN = (
    f"{_FORM}; lists as --name 64 64. No flag can be abbreviated. Of several sources the last one wins: the defaults "
    "below, the saved run that is resumed, the file given with --config, the command line."
)


def train_help(family: str | None, family_defaults: Mapping[str, object]) -> str:
    """All flags of train by section. ``family_defaults``: what the env family ``family`` sets for the environment."""
    lines = ["usage: python -m sfactory.train --env=ENV [--flag=value ...]", "", *textwrap.wrap(_FORM_OF_TRAIN, _WIDTH)]
    lines += ["", "  --config FILE", f"{_INDENT}YAML, TOML or JSON file with a flat mapping of flag names to values"]
    lines += [
        "",
        "  --print_config",
        f"{_INDENT}print the value and source of every flag, as such a JSON file, and stop",
    ]
    for section, section_type in get_type_hints(Config).items():
        lines += ["", f"{section}: {(section_type.__doc__ or '').strip()}"]
        for flag in all_flags().values():
            if flag.section == section and flag.name in family_defaults:
                lines += _flag_lines(flag, family_defaults[flag.name], f", from env family {family}")
            elif flag.section == section:
                lines += _flag_lines(flag, flag.default)
    return "\n".join(lines) + "\n"


def command_help(usage: str, about: str, flags: Iterable[Flag]) -> str:
    """The flags of another command. ``usage``: its module and required words. ``about``: what the command does."""
    lines = [f"usage: python -m {usage} [--flag=value ...]", "", *textwrap.wrap(f"{about} {_FORM}.", _WIDTH), ""]
    for flag in flags:
        lines += _flag_lines(flag, flag.default)
    return "\n".join(lines) + "\n"


def _flag_lines(flag: Flag, default: object, origin: str = "") -> list[str]:
    """The flag's type, meaning, default (and where that comes from) and range."""
    facts = f"default {shown(value_text(default)) or 'empty'}{origin}"
    if accepted := flag.info.range_text():
        facts += f"; {'each ' if flag.is_list else ''}{accepted}"
    text = f"{flag.info.help} [{facts}]"
    body = textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    choices = type_text(flag).replace("|", "| ")  # so that lines end between them
    head = textwrap.wrap(f"  --{flag.name} {choices}", _WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False)
    return [*(line.replace("| ", "|") for line in head), *body]
