"""Every file, class, function and package is small enough to be read at once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.support.source import Source, code, parse

FILE_LINES = 400
CLASS_LINES = 250
FUNCTION_LINES = 60
PACKAGE_FILES = 25


def oversized(source: Source) -> list[str]:
    """Each unit of the file that is over its limit, one line each."""
    problems = []
    lines = len(source.text.splitlines())
    if lines > FILE_LINES:
        problems.append(f"{source.path}: {lines} lines, at most {FILE_LINES}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            limit = FUNCTION_LINES
        elif isinstance(node, ast.ClassDef):
            limit = CLASS_LINES
        else:
            continue
        assert node.end_lineno is not None
        length = node.end_lineno - node.lineno + 1
        if length > limit:
            problems.append(f"{source.path}:{node.lineno}: {node.name} has {length} lines, at most {limit}")
    return problems


def test_files_classes_and_functions_keep_to_their_limits() -> None:
    problems = [problem for source in code() for problem in oversized(source)]

    assert problems == []


def test_packages_keep_to_their_limit() -> None:
    files = Counter(str(Path(source.path).parent) for source in code("sfactory"))

    assert {package: count for package, count in files.items() if count > PACKAGE_FILES} == {}


def test_what_is_one_line_too_long_is_found() -> None:
    function = "def f():\n" + "    x = 1\n" * FUNCTION_LINES
    class_ = "class C:\n" + "    x = 1\n" * CLASS_LINES
    file = "x = 1\n" * (FILE_LINES + 1)

    assert [len(oversized(parse("x.py", text))) for text in (function, class_, file)] == [1, 1, 1]


def test_what_is_just_within_the_limits_passes() -> None:
    function = "def f():\n" + "    x = 1\n" * (FUNCTION_LINES - 1)
    class_ = "class C:\n" + "    x = 1\n" * (CLASS_LINES - 1)

    assert oversized(parse("x.py", function + class_)) == []
