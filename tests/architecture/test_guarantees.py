"""Every test that docs/guarantees.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.source import ROOT

TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def missing_tests(text: str, root: Path) -> list[str]:
    """Each test that ``text`` names and that is not below ``root``, one line each."""
    problems = []
    for file, name in sorted(set(TEST.findall(text))):
        path = root / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            problems.append(f"there is no test {file}::{name}")
    return problems


def test_every_test_that_a_guarantee_names_exists() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")

    assert len(TEST.findall(text)) > 40
    assert missing_tests(text, ROOT) == []


def test_a_missing_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one(): ...\nclass A:\n    def test_two(self): ...\n")

    assert missing_tests("`test_a.py::test_one`", tmp_path) == []
    assert len(missing_tests("`test_a.py::test_two` `test_b.py::test_one`", tmp_path)) == 2
