"""Pages for users: their commands are accepted, their messages are ours, and their claims lead to a proof."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfactory.config.resolve import read_command_line
from tests.architecture.test_pointers import LINK, POINTER
from tests.support.pages import blocks, to_module
from tests.support.source import ROOT, code, documents

PAGES = [
    path
    for path in documents()
    if path.startswith(("docs/tutorials/", "docs/coming_from/", "docs/quickstart", "docs/troubleshooting"))
]
SHORTEST = 8  # characters of a part of a message that is looked for


@pytest.mark.parametrize("path", PAGES)
def test_trainings_of_a_page_are_accepted_with_its_own_code(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.setattr("sfactory.config.validation.lack_of_family", lambda family: "")
    for block in blocks(path):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        for command in block.commands:
            settings = re.findall(r"--config=(\S+)", command)  # commands before it write those that are not there
            if command.startswith("sfactory train ") and all(map(os.path.exists, settings)):
                read_command_line(to_module(command)[1])


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
