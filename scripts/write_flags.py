"""Writes docs/flags.md: every flag, and the map from the ancestors' flags, which is data of sfactory/config/.

Run it after a change of a flag or of the data. tests/architecture/test_flag_map.py checks the file and the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_type_hints

from sfactory.config.ancestors import (
    DROPPED,
    RENAMED,
    REPLACED,
    SAME,
    Ancestor,
    Entry,
    ancestors,
    entries,
)
from sfactory.config.argv import ALGO, CONFIG, PRINT_CONFIG
from sfactory.config.commands import (
    CheckConfig,
    EvaluateConfig,
    ExportConfig,
    MatchConfig,
    PageConfig,
    PlotConfig,
    check_flags,
    evaluate_flags,
    export_flags,
    match_flags,
    page_flags,
    plot_flags,
)
from sfactory.config.enjoy import EnjoyConfig, enjoy_flags
from sfactory.config.flags import Flag, all_flags, coerce, type_text, value_text
from sfactory.config.launcher import LauncherConfig, RemoteConfig, launcher_flags, remote_flags
from sfactory.config.schema import Config

DOCS = Path(__file__).parents[1] / "docs"
TARGET = DOCS / "flags.md"

RELATIONS = (SAME, RENAMED, REPLACED, DROPPED)
# Words that commands take besides the flags of the schema.
WORDS = {
    "help": "print the most important flags; --help=all: all with type, default, range and meaning; --help=SECTION, "
    "--help=FLAG: some of them; with --env, with the defaults that hold for it",
    CONFIG.name: "YAML, TOML or JSON file of flags and their values, with or without their sections (train alone)",
    PRINT_CONFIG.name: "print all flags with their values and sources, as such a JSON file, and stop (train alone)",
    ALGO.name: "APPO, which is what sfactory does in any case: for Sample Factory's command lines (train alone)",
}
# The document is the same on all machines; and an empty text is no default where something must be given.
DEFAULTS_IN_WORDS = {"num_workers": "number of cores"} | dict.fromkeys(("env", "experiment", "out", "run"), "required")
OPTIONAL = {("plot", "out"), ("report_page", "out"), ("run", "experiment"), ("export", "out")}
# Where a flag's origin is looked for: Sample Factory's two versions, side by side, and then the others.
VERSIONS = {"sf_v1": "v1", "sf_v2": "v2"}
OTHERS = {"appo": "early v1", "rllib_impala": "RLlib", "rllib_appo": "RLlib APPO"}

INTRODUCTION = f"""# Flags

Every flag of sfactory, and what is here in place of each flag of other trainers: Sample Factory, RLlib's IMPALA,
and the PPO of Stable-Baselines3 and CleanRL.
Written by `scripts/write_flags.py` from the sections of `sfactory/config/schema.py`, `sfactory/config/enjoy.py`,
`sfactory/config/commands.py`, `sfactory/config/launcher.py` and `sfactory/config/flag_map.json`; `make flags` updates
it, and a test fails where it is out of date.

Flags are `--name=value` or `--name value`, with dashes or underscores; booleans are `True` or `False` (without a
value: `True`); lists are separated by spaces or written as in JSON; whole numbers may be 10k, 2.5M or 1e6; nothing is
abbreviated.
Families of environments have defaults of their own:
`sfactory train --env=CartPole-v1 --help=all` shows those of one environment.

The words of the map:

- **{SAME}**: a flag of that name with that meaning; where meaning or default differ, the note says how.
- **{RENAMED}**: the same thing under another name.
- **{REPLACED}**: another flag, or something that needs no flag, serves the purpose.
- **{DROPPED}**: will not be there; the note says why.
"""


def our_flags() -> dict[str, Flag]:
    """All flags by name; where train and another command share a name, it is train's."""
    others = (
        *(launcher_flags, remote_flags, page_flags, plot_flags, match_flags, check_flags),
        *(export_flags, evaluate_flags, enjoy_flags),
    )
    return {name: flag for flags in (*others, all_flags()) for name, flag in flags.items()}


def default_text(flag: Flag) -> str:
    """A default as in the document, the same on every machine."""
    if (flag.section, flag.name) in OPTIONAL:
        return value_text(flag.default) or "empty"
    return DEFAULTS_IN_WORDS.get(flag.name) or value_text(flag.default) or "empty"


def is_same_default(flag: Flag, text: str) -> bool:
    """Whether an ancestor's default ``text`` means our default."""
    if flag.name in DEFAULTS_IN_WORDS or text == default_text(flag):
        return text == default_text(flag)
    try:
        return coerce(flag, text) == flag.default
    except ValueError:
        return False


class Origins:
    """Finds the origins of our flags in the map."""

    def __init__(self, lists: Iterable[Ancestor], mapped: Iterable[Entry]) -> None:
        self._defaults = {known.source: known.flags for known in lists}
        self._entries: dict[str, list[Entry]] = {source: [] for source in self._defaults}
        for entry in mapped:
            for source in entry.sources:
                self._entries[source].append(entry)

    def of(self, flag: Flag) -> str:
        """The cell of ``flag``: "same", "v1: renamed from `ppo_epochs`; v2: same", ..., or "new"."""
        found = {label: self._in(source, flag) for source, label in VERSIONS.items()}
        if len(set(found.values())) == 1 and all(found.values()):
            return next(iter(found.values()))
        if not any(found.values()):
            found = {label: self._in(source, flag) for source, label in OTHERS.items()}
        return "; ".join(f"{label}: {text}" for label, text in found.items() if text) or "new"

    def _in(self, source: str, flag: Flag) -> str:
        """What ``source`` has to do with ``flag``; "" if nothing."""
        there = self._entries[source]
        if any(entry.name == flag.name and entry.relation == SAME for entry in there):
            default = self._defaults[source][flag.name]
            return SAME if is_same_default(flag, default) else f"same, default `{default}`"
        for relation, word in ((RENAMED, "renamed from"), (REPLACED, "replaces")):
            names = [entry.name for entry in there if entry.relation == relation and flag.name in entry.ours]
            if names:
                return f"{word} {_code(names)}"
        return ""


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table. A bar would end a cell, even within backticks."""
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]


def _flag_table(flags: Iterable[Flag], origins: Origins) -> list[str]:
    rows = []
    for flag in flags:
        allowed = flag.info.range_text()
        rows.append(
            [
                f"`{flag.name}`",
                _code(flag.choices) or type_text(flag).replace("True|False", "boolean"),
                default_text(flag),
                f"each {allowed}" if allowed and flag.is_list else allowed,
                flag.info.help,
                origins.of(flag),
            ]
        )
    return _table(["flag", "type", "default", "range", "meaning", "Sample Factory v1 / v2"], rows)


def _our_part(origins: Origins) -> list[str]:
    """Every flag of ours by section."""
    lines = ["## The flags of sfactory.train", "", f"{len(all_flags())} in all.", "", "### command line", ""]
    lines += _table(["word", "meaning"], [[f"`{word}`", meaning] for word, meaning in WORDS.items()])
    for section, section_type in get_type_hints(Config).items():
        flags = [flag for flag in all_flags().values() if flag.section == section]
        lines += ["", f"### {section}", "", (section_type.__doc__ or "").strip(), ""]
        lines += _flag_table(flags, origins)
    others: list[tuple[str, type, Mapping[str, Flag]]] = [
        ("check_env", CheckConfig, check_flags),
        ("enjoy", EnjoyConfig, enjoy_flags),
        ("evaluate", EvaluateConfig, evaluate_flags),
        ("export", ExportConfig, export_flags),
        ("launcher", LauncherConfig, launcher_flags),
        ("match", MatchConfig, match_flags),
        ("plot", PlotConfig, plot_flags),
        ("remote_actors", RemoteConfig, remote_flags),
        ("report_page", PageConfig, page_flags),
    ]
    for name, settings, known in others:
        lines += ["", f"## The flags of sfactory.{name}", "", f"{settings.__doc__} {len(known)} in all.", ""]
        lines += _flag_table(known.values(), origins)
    return lines


def _here(entry: Entry) -> str:
    """Our flags for this purpose with their defaults."""
    ours = our_flags()
    names = [entry.name] if entry.relation == SAME else entry.ours
    shown = [f"`{name}` ({default_text(ours[name])})" if name in ours else f"`{name}`" for name in names]
    return "; ".join([*shown, *filter(None, [entry.by])])


def _ancestor_part(ancestor: Ancestor, mapped: Sequence[Entry]) -> list[str]:
    """The map of one ancestor. Raises KeyError, naming the flag, if it is not mapped."""
    by_name = {entry.name: entry for entry in mapped if ancestor.source in entry.sources}
    counts = Counter(by_name[name].relation for name in ancestor.flags)
    summary = ", ".join(f"{counts[relation]} {relation}" for relation in RELATIONS if counts[relation])
    rows = [
        [f"`{name}`", default, by_name[name].relation, _here(by_name[name]), by_name[name].note]
        for name, default in ancestor.flags.items()
    ]
    return [
        *["", f"### {ancestor.title}", "", f"{ancestor.about} {len(ancestor.flags)} in all: {summary}.", ""],
        *_table(["there", "default", "relation", "here (default)", "note"], rows),
    ]


def document() -> str:
    """The whole of docs/flags.md."""
    lists, mapped = ancestors(), entries()
    lines = [INTRODUCTION, *_our_part(Origins(lists, mapped)), "", "## The map from other trainers"]
    for ancestor in lists:
        lines += _ancestor_part(ancestor, mapped)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
    print(f"wrote {TARGET}")
