"""The project's own source, as the architecture tests read it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("sfactory", "envs", "scripts")


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root of the checkout, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The folder below sfactory/, or the module's own name if it lies there directly."""
        return Path(self.path).parts[1].removesuffix(".py")


def parse(path: str, text: str) -> Source:
    """A Source of that text; raises SyntaxError as ast does."""
    return Source(path, text, ast.parse(text))


def code(*folders: str) -> list[Source]:
    """Every Python file below ``folders`` (all of the project's code by default), in order of path."""
    files = [file for folder in folders or CODE for file in sorted((ROOT / folder).rglob("*.py"))]
    return [parse(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in files]


def documents() -> dict[str, str]:
    """Text of every Markdown file at the root and below docs/, by path."""
    files = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
