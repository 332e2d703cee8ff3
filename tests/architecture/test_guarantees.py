"""docs/guarantees.md names tests that exist, a line for each row of the fault matrix, and how long ones are run.

A test of a whole run that a row rests on asserts how the run ended.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.endings import reached
from tests.support.source import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (\d+) \|(.*)\|$", re.MULTILINE)
ROWS = range(1, 50)
NOT_YET = "not yet"
FAULTS = "tests/faults/"
BY_HAND = frozenset({"wait", "last_stderr_line", "assert_clean"})
# Tests of rows that need not use ``assert_ended``: why, and what they use in its place. A file stands for all in it.
_ONE_BY_ONE = "asserts the exit code, the last line and the rest one after the other", BY_HAND
_KILLED = "main is killed, so there is no exit code of its own, and no last line", frozenset({"wait", "assert_clean"})
OTHER_ENDS = {
    "test_interrupt.py": _ONE_BY_ONE,
    "test_divergence.py": _ONE_BY_ONE,
    "test_many_kills.py::test_cartpole_is_solved_although_a_hundred_workers_are_killed": _ONE_BY_ONE,
    "test_many_kills.py::test_nothing_that_was_saved_is_lost_although_all_processes_are_killed_two_hundred_times": (
        _KILLED
    ),
    "test_kill.py::test_a_killed_main_takes_its_children_along_and_the_run_can_be_resumed": _KILLED,
    "test_stuck_envs.py::test_a_killed_main_takes_along_an_actor_whose_env_is_stuck": _KILLED,
    "test_storage.py::test_a_kill_between_writing_and_naming_a_checkpoint_costs_that_one_alone": _KILLED,
    "test_bad_command_lines.py::test_a_bad_command_line_is_refused_with_advice": (
        "command lines are run two at a time, before the test; another looks at what they leave behind",
        frozenset({"returncode", "stderr"}),
    ),
    "test_full_rings.py::test_a_ring_whose_reader_is_stopped_fails_loudly_and_nothing_that_it_took_is_lost": (
        "no run: one ring and its reader",
        frozenset(),
    ),
    "test_full_rings.py::test_a_message_that_never_fits_is_told_apart_from_a_full_ring_at_once": (
        "no run: one ring",
        frozenset(),
    ),
}


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


def open_ends(text: str, root: Path) -> list[str]:
    """Each test of a whole run that a row of the matrix rests on and that does not assert how the run ended."""
    matrix = text.partition("## The fault matrix")[2].partition("\n## ")[0]
    problems = []
    for file, name in sorted(set(TEST.findall(matrix))):
        if file.startswith(FAULTS):
            short = file.removeprefix(FAULTS)
            _, needs = OTHER_ENDS.get(f"{short}::{name}") or OTHER_ENDS.get(short) or ("", frozenset({"assert_ended"}))
            used = reached(file, name, root)
            if "assert_ended" not in used and not needs <= used:
                problems.append(f"{file}::{name} does not use {', '.join(sorted(needs - used))}")
    return problems


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


def test_every_whole_run_that_a_row_rests_on_is_asserted_to_have_ended_as_it_should() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert open_ends(text, ROOT) == []
    tests = {f"{file}::{name}" for file, name in TEST.findall(text)}
    for place in OTHER_ENDS:
        assert any(test.startswith(f"{FAULTS}{place}") for test in tests), f"no row rests on {place}"


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


def test_a_run_whose_end_nobody_looks_at_is_found(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "faults" / "test_a.py"
    support = tmp_path / "tests" / "support"
    file.parent.mkdir(parents=True)
    support.mkdir()
    (support / "ends.py").write_text("def end_well(run): run.assert_ended(0)\ndef assert_resumes(run): end_well(run)\n")
    file.write_text(
        "from tests.support.ends import assert_resumes, end_well as end\n"
        "def finished(run): end(run)\n"
        "def test_one(run): run.assert_ended(0)\n"
        "def test_two(run): finished(run)\n"
        "def test_three(run): run.wait(); assert_resumes(run)\n"
    )
    rows = "".join(f"| {row} | `tests/faults/test_a.py::test_{name}` |\n" for row, name in enumerate(("one", "two")))
    text = f"## The fault matrix\n{rows}"

    assert open_ends(text, tmp_path) == []
    assert open_ends(text.replace("test_two", "test_three"), tmp_path) == [
        "tests/faults/test_a.py::test_three does not use assert_ended"
    ]


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
