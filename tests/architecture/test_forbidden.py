"""What the code does without: the wall clock, globals, swallowed exceptions, unpickling, rooms without a noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import Source, code, parse

VAGUE_NAMES = frozenset({"util", "utils", "manager", "managers", "helper", "helpers", "misc", "common"})
FORBIDDEN_CALLS = {
    "time.time": "durations want time.monotonic: the wall clock jumps",
    "pickle.load": "loads code with data",
    "pickle.loads": "loads code with data",
    "locals": "say which names are meant",
}
FORBIDDEN_NAMES = {("time", "time"), ("pickle", "load"), ("pickle", "loads")}
UNFINISHED = re.compile(r"#.*\b(TODO|FIXME|XXX)\b")


def dotted(node: ast.expr) -> str:
    """The name a call is made by: "time.time", "locals", or "" if it is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def forbidden_nodes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, reason) of each construct that has no place here."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=func, keywords=keywords):
                if reason := FORBIDDEN_CALLS.get(dotted(func)):
                    yield node.lineno, f"{dotted(func)}(): {reason}"
                for keyword in keywords:
                    if keyword.arg == "weights_only" and getattr(keyword.value, "value", None) is not True:
                        yield node.lineno, "weights_only is not the constant True: loads code with data"
            case ast.ImportFrom(module=module, names=names):
                for name in names:
                    if (module, name.name) in FORBIDDEN_NAMES:
                        yield node.lineno, f"from {module} import {name.name}"
            case ast.Global():
                yield node.lineno, "global: state belongs to an object"
            case ast.ExceptHandler(type=None):
                yield node.lineno, "bare except: catches even KeyboardInterrupt"


def violations(source: Source) -> list[str]:
    """All that is forbidden in one file, one line each."""
    found = [f"{source.path}:{line}: {reason}" for line, reason in forbidden_nodes(source.tree)]
    for line, text in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(text):
            found.append(f"{source.path}:{line}: unfinished: {text.strip()}")
    for part in Path(source.path).with_suffix("").parts:
        if VAGUE_NAMES & set(part.split("_")):
            found.append(f"{source.path}: {part!r} names no thing")
    return found


def test_the_code_does_without_what_is_forbidden() -> None:
    problems = [problem for source in code() for problem in violations(source)]

    assert problems == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\nstart = time.time()",
        "from time import time",
        "import pickle\npickle.loads(b'')",
        "from pickle import load",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "def f():\n    global x\n    x = 1",
        "try:\n    f()\nexcept:\n    pass",
        "names = locals()",
        "x = 1  # " + "TODO: finish",
    ],
)
def test_what_is_forbidden_is_found(text: str) -> None:
    assert len(violations(parse("sfactory/x.py", text))) == 1


def test_a_module_without_a_noun_is_found() -> None:
    assert len(violations(parse("sfactory/run/process_utils.py", ""))) == 1


def test_what_only_looks_alike_passes() -> None:
    text = (
        "import time\ntime.monotonic()\ntorch.load(path, weights_only=True)\ntry:\n    f()\nexcept OSError:\n    raise"
    )

    assert violations(parse("sfactory/run/manage.py", text)) == []
