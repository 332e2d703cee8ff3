"""Answers names that other trainers have for their flags.

ancestors.json lists the flags of each trainer, flag_map.json says what each of them is here. docs/flags.md shows both.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_ANCESTORS = Path(__file__).with_name("ancestors.json")
_MAP = Path(__file__).with_name("flag_map.json")

SAME, RENAMED, REPLACED, DROPPED = "same", "renamed", "replaced by", "not applicable"


@dataclass(frozen=True)
class Ancestor:
    """The flags of one trainer with their defaults as text."""

    source: str
    title: str
    about: str
    flags: Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """The flag ``name`` of ``sources`` here: the names of ``ours``, or a text (``by``)."""

    name: str
    sources: Sequence[str]
    relation: str
    ours: Sequence[str] = ()
    by: str = ""
    note: str = ""

    def hint(self, known: Collection[str], prefix: str) -> str:
        """What to use in place of this flag, of the flags in ``known`` if they have something for it."""
        if self.relation == SAME:
            return f"is a flag of {commands_with(self.name) or 'sfactory.train'}, not of this command"
        names = dict.fromkeys(f"{_software(source)}'s" for source in self.sources)
        owner = f"is {' and '.join(names)} name"
        here = [prefix + each for each in self.ours if each in known]
        elsewhere = [f"{prefix}{each} of {commands_with(each) or 'sfactory.train'}" for each in self.ours]
        if self.relation == DROPPED:
            answer = f"{owner}; there is no such flag here"
        else:
            answer = f"{owner}; here it is {' or '.join([*(here or elsewhere), *filter(None, [self.by])])}"
        return f"{answer}. {self.note}".rstrip(". ").replace("`", "")


@functools.cache
def ancestors() -> tuple[Ancestor, ...]:
    """The lists, in the order in which docs/flags.md shows them."""
    return tuple(Ancestor(**values) for values in json.loads(_ANCESTORS.read_text(encoding="utf-8")))


@functools.cache
def entries() -> tuple[Entry, ...]:
    """The whole map."""
    return tuple(Entry(**values) for values in json.loads(_MAP.read_text(encoding="utf-8")))


def ancestor_hint(name: str, known: Collection[str], prefix: str = "") -> str:
    """``is RLlib's name; here it is --num_epochs`` (with ``prefix`` ``--``), or "" for names that no trainer has.

    known: the flags of the command, which are to be used in place of ``name``.
    """
    found = sorted(
        (e for e in entries() if e.name == name), key=lambda e: e.relation == SAME or not set(e.ours) & set(known)
    )
    return found[0].hint(known, prefix) if found else ""


def commands_with(name: str) -> str:
    """``sfactory.enjoy and sfactory.export``: the commands beside train that have a flag of this name; "" without."""
    # Imported late: their modules read command lines, and those this one.
    from sfactory.config import commands, enjoy, launcher

    whole = (enjoy.enjoy_flags, commands.evaluate_flags, commands.export_flags, commands.match_flags)
    others = (commands.check_flags, commands.plot_flags, commands.page_flags)
    starting = (launcher.launcher_flags, launcher.remote_flags)
    found = [f"sfactory.{flags[name].section}" for flags in (*whole, *others, *starting) if name in flags]
    return " and ".join(filter(None, (", ".join(found[:-1]), *found[-1:])))


def _software(source: str) -> str:
    """``RLlib`` for ``RLlib, IMPALA``."""
    return next(known.title for known in ancestors() if known.source == source).partition(",")[0]
