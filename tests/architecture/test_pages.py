"""Pages for users: their commands are accepted, their messages are ours, and their claims lead to a proof."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfactory.config.resolve import read_command_line
from sfactory.errors import ConfigError
from tests.architecture.test_pointers import LINK, POINTER
from tests.support.pages import blocks, commands
from tests.support.source import ROOT, code, documents

# Flags that print, and names that stand for others.
LEFT_OUT = ("--help", "--print_config", "--env=NAME")
SHORTEST = 8  # characters of a part of a message that is looked for


def trainings(path: str) -> Iterator[list[str]]:
    """The words of each training of the page that tells its env, with the code and settings that are there."""
    for name, words in commands(documents()[path]):
        joined = " ".join(words)
        settings = re.findall(r"--config=(\S+)", joined)
        needed = [*settings, *(f"{module}.py" for module in re.findall(r"\bmy_\w+(?=:|\.py)", joined))]
        left_out = any(map(joined.__contains__, LEFT_OUT)) or not all(map(os.path.exists, needed))
        if name == "train" and ("--env=" in joined or settings) and not left_out:
            yield words


def test_trainings_of_all_pages_are_accepted_with_their_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfactory.config.validation.lack_of_family", lambda family: "")  # its package is not installed
    accepted, refused = dict[str, int](), []
    for number, path in enumerate(documents()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "docs").symlink_to(ROOT / "docs")
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        for block in blocks(path):
            if block.file:
                (folder / block.file).write_text(block.text, encoding="utf-8")
        for words in [] if path.startswith("docs/examples/") else trainings(path):
            try:
                read_command_line(words)
                accepted[path] = accepted.get(path, 0) + 1
            except ConfigError as error:
                refused.append(f"{path}: {' '.join(words)}: {error}")

    assert refused == []
    assert sum(accepted.values()) >= 60
    assert len(accepted) >= 20


def strings() -> Iterator[str]:
    """Every text of sfactory's code, with a null character in place of each value."""
    for source in code("sfactory"):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[\d.]*[sdgr]", "\0", node.value).replace("%%", "%")


def test_messages_of_the_page_on_troubleshooting_are_those_that_are_printed() -> None:
    quoted = re.findall(r'^\| "(.*?)"(?: \([^|]*\))? \|', documents()["docs/troubleshooting.md"], re.MULTILINE)
    known = "\n".join(strings())

    parts = [part.strip(" .;") for message in quoted for part in message.split("...")]
    assert len(quoted) >= 40
    assert [part for part in parts if len(part) >= SHORTEST and part not in known] == []


def test_each_convention_that_is_met_leads_to_a_page_or_a_test() -> None:
    rows = re.findall(r"^\| (.*?) \| ([YPN]) \| (.*?) \|", documents()["docs/conventions.md"], re.MULTILINE)

    assert len(rows) == 41
    without = [where for _, met, where in rows if met == "Y" and not (LINK.search(where) or POINTER.search(where))]
    assert [where for where in without if not (ROOT / where.split("`")[1]).is_file()] == []
