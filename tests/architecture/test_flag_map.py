"""docs/flags.md is up to date, and the map of its ancestors' flags is consistent."""

from __future__ import annotations

import re
from collections import Counter

from scripts.write_flags import RELATIONS, TARGET, WORDS, document, is_same_default, our_flags
from sfactory.config.ancestors import DROPPED, RENAMED, REPLACED, SAME, Entry, ancestors, entries

OURS = {*our_flags(), *WORDS}
DEFAULTS = {known.source: known.flags for known in ancestors()}


def test_the_document_is_up_to_date_and_has_a_row_for_each_flag() -> None:
    text = document()

    assert TARGET.read_text(encoding="utf-8") == text, "run make flags"
    ours = text.partition("## The map from other trainers")[0]
    assert our_flags().keys() - set(re.findall(r"^\| `(\w+)` \|", ours, re.MULTILINE)) == set()
    assert "| `num_workers` | int | number of cores |" in text  # not the number of this machine


def test_every_flag_of_every_ancestor_is_mapped_exactly_once() -> None:
    listed = Counter((known.source, name) for known in ancestors() for name in known.flags)
    mapped = Counter((source, entry.name) for entry in entries() for source in entry.sources)

    assert listed == mapped


def problems_of(entry: Entry) -> list[str]:
    """The faults of an entry of the map."""
    absent = entry.relation == DROPPED
    other_default = any(
        entry.name in our_flags() and not is_same_default(our_flags()[entry.name], DEFAULTS[source][entry.name])
        for source in entry.sources
    )
    checks = {
        "unknown relation": entry.relation not in RELATIONS,
        "leads to a flag that does not exist": not set(entry.ours) <= OURS,
        "is the same, but has no flag of this name": entry.relation == SAME and entry.name not in OURS,
        "is the same, but leads to others": (entry.relation == SAME or absent) and bool(entry.ours or entry.by),
        "has another default and no note": entry.relation == SAME and other_default and not entry.note,
        "is renamed, but not to one flag": entry.relation == RENAMED and len(entry.ours) != 1,
        "is replaced by nothing": entry.relation == REPLACED and not (entry.ours or entry.by),
        "is absent, but has a flag of this name": absent and entry.name in OURS,
        "is absent without a reason": absent and not entry.note,
    }
    return [f"{entry.name} {problem}" for problem, wrong in checks.items() if wrong]


def test_the_map_is_consistent() -> None:
    assert [problem for entry in entries() for problem in problems_of(entry)] == []
