"""Files, classes, functions and packages keep to their limits."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.support.source import Source, code, parse

FILE_LINES = 400
CLASS_LINES = 250
FUNCTION_LINES = 60
PACKAGE_FILES = 25
LIMITS = {ast.FunctionDef: FUNCTION_LINES, ast.AsyncFunctionDef: FUNCTION_LINES, ast.ClassDef: CLASS_LINES}


def oversized(source: Source) -> list[str]:
    """Each unit of the file that exceeds its limit, one line each."""
    problems = []
    lines = len(source.text.splitlines())
    if lines > FILE_LINES:
        problems.append(f"{source.path}: {lines} lines, at most {FILE_LINES}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            assert node.end_lineno is not None
            length, limit = node.end_lineno - node.lineno + 1, LIMITS[type(node)]
            if length > limit:
                problems.append(f"{source.path}:{node.lineno}: {node.name} has {length} lines, at most {limit}")
    return problems


def test_units_keep_to_their_limits() -> None:
    files = Counter(str(Path(source.path).parent) for source in code("sfactory"))

    assert [problem for source in code() for problem in oversized(source)] == []
    assert {package: count for package, count in files.items() if count > PACKAGE_FILES} == {}


def test_one_line_too_many_is_found() -> None:
    for excess, problems in ((0, [0, 0, 0]), (1, [1, 1, 1])):
        function = "def f():\n" + "    x = 1\n" * (FUNCTION_LINES - 1 + excess)
        class_ = "class C:\n" + "    x = 1\n" * (CLASS_LINES - 1 + excess)
        file = "x = 1\n" * (FILE_LINES + excess)
        assert [len(oversized(parse("x.py", text))) for text in (function, class_, file)] == problems
