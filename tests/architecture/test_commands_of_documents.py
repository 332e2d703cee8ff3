"""Commands that the documents tell can be typed: modules, scripts and flags of these names are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from sfactory.config.argv import scan
from sfactory.config.commands import export_flags
from sfactory.config.enjoy import enjoy_flags
from sfactory.config.flags import Flag, all_flags
from sfactory.config.launcher import launcher_flags
from tests.support.source import ROOT, documents

PAGES = ("README", "docs/launcher", "docs/performance", "docs/results")
DOCUMENTS = {path: text for path, text in documents().items() if path.startswith(PAGES)}
FLAGS = {"train": all_flags(), "enjoy": enjoy_flags(), "export": export_flags(), "launcher": launcher_flags()}
MODULE = re.compile(r"python -m sfactory\.(train|enjoy|export|launcher)((?: [^`\n]*)?)")
SCRIPT = re.compile(r"python (scripts/\w+\.py)((?: [^`\n]*)?)")
NAMED = re.compile(r"`--([a-z]\w*)")
OTHERS = {"help", "name"}  # --name=value stands for all


def lines(text: str) -> str:
    """The text with what is continued on the next line in one."""
    return re.sub(r"\\\n\s*", "", text)


def words(arguments: str) -> list[str]:
    return [word for word in shlex.split(arguments, comments=True) if not word.startswith("$")]


def names(arguments: str) -> set[str]:
    return {word[2:].partition("=")[0] for word in words(arguments) if word.startswith("--")}


def commands(pattern: re.Pattern[str]) -> Iterator[tuple[str, str, str]]:
    """(document, what is run, arguments) of every command of that kind."""
    for path, text in DOCUMENTS.items():
        for what, arguments in pattern.findall(lines(text)):
            yield path, what, arguments


def test_flags_of_commands_are_flags_of_what_is_run() -> None:
    unknown = [
        f"{path}: {module} has no --{name}"
        for path, module, arguments in commands(MODULE)
        for name in names(arguments) - OTHERS - FLAGS[module].keys()
    ]

    assert len(list(commands(MODULE))) >= 20
    assert unknown == []


def test_commands_of_the_readme_are_read_without_problems() -> None:
    flags: dict[str, tuple[dict[str, Flag], bool]] = {
        "train": (dict(all_flags()), True),
        "enjoy": (dict(enjoy_flags()), False),
        "export": (dict(export_flags()), False),
        "launcher": (dict(launcher_flags()), False),
    }
    problems = [
        problem
        for path, module, arguments in commands(MODULE)
        if path == "README.md"
        for problem in scan(words(arguments), *flags[module]).problems
    ]

    assert problems == []


def test_flags_that_the_readme_names_are_there() -> None:
    named = set(NAMED.findall(DOCUMENTS["README.md"]))

    assert len(named) >= 20
    assert named - OTHERS - all_flags().keys() - enjoy_flags().keys() == set()


def test_scripts_of_commands_are_there_and_take_their_options() -> None:
    wrong = [
        f"{path}: {script} takes no --{name}"
        for path, script, arguments in commands(SCRIPT)
        for name in names(arguments.partition(" -- ")[0])
        if f'"--{name}"' not in (ROOT / script).read_text()
    ]

    assert len(list(commands(SCRIPT))) >= 15
    assert wrong == []


@pytest.mark.parametrize("target", ["train", "test"])
def test_what_a_newcomer_types_first_is_there(target: str) -> None:
    first = DOCUMENTS["README.md"].partition("```\n")[2].partition("```")[0]

    assert f"make {target}\n" in first
    assert f"\n{target}: " in (ROOT / "Makefile").read_text()
