"""Room: what tests of whole runs assert at the end. In: their source. Out: names that are called or read on the way.

Calls are followed into functions of the same module, and into those of tests/support that it imports by name.
"""

from __future__ import annotations

import ast
from pathlib import Path

SUPPORT = "tests.support."
# What these assert is of a run of their own, which tells nothing of the end of the one that the test is about.
OF_ANOTHER_RUN = frozenset({"assert_resumes"})


class Module:
    """Functions of one file, and where those that it imports from tests/support stand."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module is not None]
        self.imported = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in imports
            if (node.module or "").startswith(SUPPORT)
            for alias in node.names
        }


def reached(file: str, name: str, root: Path) -> frozenset[str]:
    """Names of all attributes that function ``name`` of ``file`` uses, by itself or through what it calls."""
    found: set[str] = set()
    modules: dict[str, Module] = {}
    waiting, seen = [(file, name)], set()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        path, function = place
        if path not in modules:
            modules[path] = Module((root / path).read_text(encoding="utf-8"))
        module = modules[path]
        if function not in module.functions:
            continue
        for node in ast.walk(module.functions[function]):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in OF_ANOTHER_RUN:
                called = node.func.id
                if called in module.functions:
                    waiting.append((path, called))
                elif called in module.imported:
                    where, original = module.imported[called]
                    waiting.append((where.replace(".", "/") + ".py", original))
    return frozenset(found)
