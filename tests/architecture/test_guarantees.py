"""docs/guarantees.md names tests that exist, a line for each row of the fault matrix, and how long ones are run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.source import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (\d+) \|(.*)\|$", re.MULTILINE)
ROWS = range(1, 50)
NOT_YET = "not yet"


def missing_tests(text: str, root: Path) -> list[str]:
    """Each test that ``text`` names and that there is not below ``root``, one line each."""
    problems = []
    for file, name in sorted(set(TEST.findall(text))):
        path = root / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            problems.append(f"there is no test {file}::{name}")
    return problems


def unproved_rows(text: str) -> list[str]:
    """Rows of the fault matrix that are missing, there twice, or neither shown by a test nor owned up to."""
    matrix = text.partition("## The fault matrix")[2].partition("\n## ")[0]
    found = ROW.findall(matrix)
    numbers = [int(number) for number, _ in found]
    problems = [f"row {number} is there {numbers.count(number)} times" for number in ROWS if numbers.count(number) != 1]
    return problems + [
        f"row {number} is not shown" for number, rest in found if not TEST.search(rest + "|") and NOT_YET not in rest
    ]


def unproved_promises(text: str) -> list[str]:
    """Promises, which are the items before the fault matrix, that name no test."""
    promises = re.findall(r"^- (.+)$", text.partition("## The fault matrix")[0], re.MULTILINE)
    return [promise for promise in promises if not TEST.search(promise) and not promise.startswith("Not promised:")]


def test_every_test_that_a_guarantee_rests_on_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert len(TEST.findall(text)) > 40
    assert missing_tests(text, ROOT) == []


def test_every_row_of_the_fault_matrix_is_shown_by_a_test_or_told_to_be_missing() -> None:
    assert unproved_rows(PAGE.read_text(encoding="utf-8")) == []


def test_every_promise_names_a_test() -> None:
    assert unproved_promises(PAGE.read_text(encoding="utf-8")) == []


def test_long_fault_tests_are_run_by_their_own_target_alone() -> None:
    commands = [line for line in (ROOT / "Makefile").read_text().splitlines() if "-m pytest" in line and " -m " in line]
    chosen = [expression for line in commands for expression in re.findall(r'pytest -m ("[^"]*"|\S+)', line)]

    assert sum(expression == "faults_long" for expression in chosen) == 1
    assert all(expression == "faults_long" or "not faults_long" in expression for expression in chosen)


def test_a_test_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one(): ...\nclass A:\n    def test_two(self): ...\n")

    assert missing_tests("`test_a.py::test_one`", tmp_path) == []
    assert len(missing_tests("`test_a.py::test_two` `test_b.py::test_one`", tmp_path)) == 2


def test_a_row_or_promise_without_a_test_is_found() -> None:
    rows = "".join(f"| {number} | a fault | `a.py::test_it` |\n" for number in ROWS)
    text = f"- nothing is lost `a.py::test_it`\n## The fault matrix\n{rows}"

    assert unproved_rows(text) == []
    assert unproved_promises(text) == []
    assert unproved_rows(text.replace("| 7 | a fault | `a.py::test_it` |\n", "")) == ["row 7 is there 0 times"]
    assert unproved_rows(text.replace("| 7 | a fault | `a.py::test_it` |", "| 7 | a fault | - |")) == [
        "row 7 is not shown"
    ]
    assert unproved_promises("- all is well\n") == ["all is well"]
