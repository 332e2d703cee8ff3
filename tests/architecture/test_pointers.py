"""Pointers from the documents into the code, written `path/file.py:Class.method`, lead to something that exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.support.source import ROOT, documents

POINTER = re.compile(r"`((?:sfactory|envs|tests|scripts)/[\w./-]+?\.py)(?::([A-Za-z_][\w.]*))?`")


def names_in(body: Iterable[ast.stmt]) -> Iterator[tuple[str, list[ast.stmt]]]:
    """(name, body) of everything that the statements define; the body of what has none is empty."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.body
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from ((target.id, []) for target in targets if isinstance(target, ast.Name))


def defines(tree: ast.Module, symbol: str) -> bool:
    """Whether the dotted ``symbol`` is defined in the module."""
    body: list[ast.stmt] = tree.body
    for part in symbol.split("."):
        found = dict(names_in(body))
        if part not in found:
            return False
        body = found[part]
    return True


def broken_pointers(texts: Mapping[str, str], root: Path) -> list[str]:
    """Each pointer in ``texts`` (by path) that leads nowhere below ``root``, one line each."""
    problems = []
    for path, text in texts.items():
        for file, symbol in POINTER.findall(text):
            target = root / file
            if not target.is_file():
                problems.append(f"{path}: there is no file {file}")
            elif symbol and not defines(ast.parse(target.read_text(encoding="utf-8")), symbol):
                problems.append(f"{path}: {file} defines no {symbol}")
    return problems


def test_every_pointer_of_the_documents_leads_somewhere() -> None:
    assert broken_pointers(documents(), ROOT) == []


def test_pointers_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "sfactory").mkdir()
    (tmp_path / "sfactory" / "a.py").write_text("LIMIT = 3\nclass A:\n    size: int = 1\n    def go(self): ...\n")
    good = "`sfactory/a.py` `sfactory/a.py:LIMIT` `sfactory/a.py:A.size` `sfactory/a.py:A.go` `other/a.py:B`"
    bad = "`sfactory/b.py` `sfactory/a.py:B` `sfactory/a.py:A.stop` `sfactory/a.py:LIMIT.x`"

    assert broken_pointers({"good.md": good}, tmp_path) == []
    assert len(broken_pointers({"bad.md": bad}, tmp_path)) == 4
