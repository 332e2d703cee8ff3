"""Every mention of ``NOTE [Name]`` has exactly one definition.

A definition has a colon after the bracket and no "see" before it; every other mention is a reference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from tests.support.source import code, documents

MENTION = re.compile(r"NOTE \[([^\]\n]+)\]")
DEFINITION = re.compile(r"(?<!see )NOTE \[([^\]\n]+)\]:", re.IGNORECASE)


def broken_notes(texts: Mapping[str, str]) -> list[str]:
    """Names that are mentioned but not defined, or defined more than once, one line each. ``texts``: by path."""
    defined: defaultdict[str, list[str]] = defaultdict(list)
    mentioned: dict[str, str] = {}
    for path, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            for name in DEFINITION.findall(line):
                defined[name].append(f"{path}:{number}")
            for name in MENTION.findall(line):
                mentioned.setdefault(name, f"{path}:{number}")
    missing = [f"NOTE [{name}] of {place} is defined nowhere" for name, place in mentioned.items() if not defined[name]]
    doubled = [f"NOTE [{name}] is defined at {', '.join(places)}" for name, places in defined.items() if places[1:]]
    return missing + doubled


def test_every_note_has_one_definition() -> None:
    texts = {source.path: source.text for source in code("sfactory", "envs", "scripts", "tests")} | documents()
    texts.pop("tests/architecture/test_notes.py")

    assert broken_notes(texts) == []


def test_missing_and_doubled_definitions_are_found() -> None:
    good = "# The rule. NOTE [Good]: it holds.\n# See NOTE [Good]: so this holds too.\n# by NOTE [Good]"

    assert broken_notes({"a.py": good}) == []
    assert len(broken_notes({"a.py": "x = 1  # See NOTE [Lost]"})) == 1
    assert len(broken_notes({"a.py": "# NOTE [Twin]: one", "b.md": "## NOTE [Twin]: two"})) == 1
