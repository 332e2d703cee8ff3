"""Files, classes, tests, commands and flags that the documents name exist, and their code can be compiled."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import sfactory
from sfactory.cli.commands import SUBCOMMANDS
from sfactory.config.argv import ALGO, CONFIG, PRINT_CONFIG, scan
from sfactory.config.commands import export_flags, page_flags
from sfactory.config.enjoy import enjoy_flags
from sfactory.config.flags import all_flags
from tests.support.pages import MODULES, commands, python_of
from tests.support.source import ROOT, documents

# `path/file.py`, `path/file.py:Class.method` and `path/test_file.py::test_name`.
POINTER = re.compile(r"`((?:sfactory|envs|tests|scripts)/[\w./-]+?\.py)(?:::?([A-Za-z_][\w.]*))?`")
LINK = re.compile(r"\]\(([^)#\s:]*)(?:#([^)\s]*))?\)")  # of this repository: others have a colon
TRAIN = {CONFIG.name: CONFIG, PRINT_CONFIG.name: PRINT_CONFIG, ALGO.name: ALGO, **all_flags()}
FLAGS = {MODULES[name]: command.known_flags() for name, command in SUBCOMMANDS.items() if command.flags}
FLAGS["train"] = TRAIN
WITH_NAMES = {"report_page", "plot", "match"}  # commands that are given names beside flags


def names_in(body: Iterable[ast.stmt]) -> Iterator[tuple[str, list[ast.stmt]]]:
    """(name, body) of each definition in the statements; the body of an assignment is empty."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.body
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from ((target.id, []) for target in targets if isinstance(target, ast.Name))


def defines(tree: ast.Module, symbol: str) -> bool:
    """Whether the module defines the dotted ``symbol``."""
    body: list[ast.stmt] = tree.body
    for part in symbol.split("."):
        found = dict(names_in(body))
        if part not in found:
            return False
        body = found[part]
    return True


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def broken_pointers(texts: Mapping[str, str], root: Path) -> list[str]:
    """Each pointer in ``texts`` (by path) to a missing file or symbol below ``root``, one line each."""
    problems = []
    for path, text in texts.items():
        for file, symbol in sorted(set(POINTER.findall(text))):
            target = root / file
            if not target.is_file():
                problems.append(f"{path}: there is no file {file}")
            elif symbol and not defines(tree_of(target), symbol):
                problems.append(f"{path}: {file} defines no {symbol}")
    return problems


def broken_links(texts: Mapping[str, str], root: Path) -> list[str]:
    """Each relative link in ``texts`` (by path) to a file or heading that does not exist, one line each."""
    problems = []
    for path, text in texts.items():
        for file, heading in LINK.findall(text):
            target = (root / path).parent / file if file else root / path
            if not target.exists():
                problems.append(f"{path}: there is no file {file}")
            elif heading and target.suffix == ".md" and heading not in anchors(target.read_text(encoding="utf-8")):
                problems.append(f"{path}: {file} has no heading {heading}")
    return problems


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken_commands(text: str) -> list[str]:
    """Problems of all commands in ``text``: unknown flags and missing scripts, one line each."""
    problems = []
    for name, words in commands(text):
        before = words[: words.index("--") if "--" in words else None]
        flags = [word.partition("=")[0] for word in before if word.startswith("--")]
        if name in WITH_NAMES:
            problems += [f"{name} takes no {flag}" for flag in flags if flag[2:] not in FLAGS[name]]
        elif name in FLAGS:
            given = [word for word in words if word not in ("--help", "--name=value")]
            found = scan(given, FLAGS[name]).problems if given else []
            problems += [problem for problem in found if "required" not in problem]
        elif name.startswith("scripts/"):
            code = (ROOT / name).read_text(encoding="utf-8") if (ROOT / name).is_file() else ""
            problems += [f"{name} takes no {flag}" for flag in flags if f'"{flag}"' not in code]
        elif name not in MODULES.values():
            problems.append(f"there is no command {name}")
    return problems


def test_pointers_of_documents_exist() -> None:
    assert broken_pointers(documents(), ROOT) == []


def test_links_of_documents_lead_to_files_and_headings() -> None:
    assert broken_links(documents(), ROOT) == []


def test_commands_of_documents_are_valid() -> None:
    problems = {path: broken_commands(text) for path, text in documents().items()}

    assert {path: found for path, found in problems.items() if found} == {}


def test_code_of_documents_can_be_compiled() -> None:
    for path in documents():
        for number, block in enumerate(python_of(path), 1):
            compile(block, f"{path}, block {number}", "exec")


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    shown = re.findall(r"^::: [\w.]+\.(\w+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert set(sfactory.__all__) - {"__version__"} - set(shown) == set()


def test_readme_is_short_and_flags_that_it_or_the_page_on_usage_names_exist() -> None:
    readme, usage = (documents()[path] for path in ("README.md", "docs/usage.md"))
    named = set(re.findall(r"`--([a-z]\w*)", readme + usage))

    others = enjoy_flags.keys() | export_flags.keys() | page_flags.keys()
    assert named - {"help", "name"} - TRAIN.keys() - others == set()
    assert len(readme.splitlines()) <= 150


def test_broken_pointers_and_commands_are_found(tmp_path: Path) -> None:
    (tmp_path / "sfactory").mkdir()
    (tmp_path / "sfactory" / "a.py").write_text("LIMIT = 3\nclass A:\n    size: int = 1\n    def go(self): ...\n")
    good = "`sfactory/a.py` `sfactory/a.py:LIMIT` `sfactory/a.py:A.size` `sfactory/a.py:A.go` `other/a.py:B`"
    bad = "`sfactory/b.py` `sfactory/a.py:B` `sfactory/a.py:A.stop` `sfactory/a.py:LIMIT.x` `sfactory/a.py::test_b`"

    assert broken_pointers({"good.md": good}, tmp_path) == []
    assert len(broken_pointers({"bad.md": bad}, tmp_path)) == 5
    (tmp_path / "page.md").write_text("# One `a_b`, two\n```\n# none\n```\n")
    assert broken_links({"good.md": "[a](page.md#one-a_b-two) [b](https://a.org/#x)"}, tmp_path) == []
    assert len(broken_links({"bad.md": "[a](page.md#none) [b](absent.md)"}, tmp_path)) == 2
    assert len(broken_commands("`python -m sfactory.train --gama=1` `python scripts/bench.py --no-such`")) == 2
    assert (
        len(broken_commands("`sfactory trian`\n```\nsfactory train --gama=1\nsfactory report RUN --opt=1\n```\n")) == 3
    )
