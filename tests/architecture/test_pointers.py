"""Files, classes, tests, commands and flags that the documents name exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sfactory.config.argv import ALGO, CONFIG, PRINT_CONFIG, scan
from sfactory.config.commands import evaluate_flags, export_flags, page_flags
from sfactory.config.enjoy import enjoy_flags
from sfactory.config.flags import all_flags
from sfactory.config.launcher import launcher_flags
from tests.support.source import ROOT, documents

# `path/file.py`, `path/file.py:Class.method` and `path/test_file.py::test_name`.
POINTER = re.compile(r"`((?:sfactory|envs|tests|scripts)/[\w./-]+?\.py)(?:::?([A-Za-z_][\w.]*))?`")
COMMAND = re.compile(r"python (?:-m sfactory\.(\w+)|(scripts/\w+\.py))((?: [^`\n]*)?)")
LINK = re.compile(r"\]\(([^)#\s:]*)(?:#([^)\s]*))?\)")  # of this repository: others have a colon
PAGES = ("README", "docs/export", "docs/gpu", "docs/launcher", "docs/performance", "docs/results")
TRAIN = {CONFIG.name: CONFIG, PRINT_CONFIG.name: PRINT_CONFIG, ALGO.name: ALGO, **all_flags()}
FLAGS = {
    "train": TRAIN,
    "enjoy": enjoy_flags,
    "evaluate": evaluate_flags,
    "export": export_flags,
    "launcher": launcher_flags,
}


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


def broken_pointers(texts: Mapping[str, str], root: Path) -> list[str]:
    """Each pointer in ``texts`` (by path) to a missing file or symbol below ``root``, one line each."""
    problems = []
    for path, text in texts.items():
        for file, symbol in sorted(set(POINTER.findall(text))):
            target = root / file
            if not target.is_file():
                problems.append(f"{path}: there is no file {file}")
            elif symbol and not defines(ast.parse(target.read_text(encoding="utf-8")), symbol):
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
    text = re.sub(r"\$seed|SEED", "1", re.sub(r"\\\n\s*", "", text))
    for module, script, arguments in COMMAND.findall(text):
        words = [word for word in shlex.split(arguments, comments=True) if not word.startswith("$")]
        if module in FLAGS:
            given = [word for word in words if word not in ("--help", "--name=value", "...")]
            found = scan(given, FLAGS[module]).problems if given else []
            problems += [problem for problem in found if "required" not in problem]
        elif script:
            code = (ROOT / script).read_text(encoding="utf-8") if (ROOT / script).is_file() else ""
            names = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
            problems += [f"{script} takes no {name}" for name in names if name[:2] == "--" and f'"{name}"' not in code]
    return problems


def test_pointers_of_documents_exist() -> None:
    assert broken_pointers(documents(), ROOT) == []


def test_links_of_documents_lead_to_files_and_headings() -> None:
    assert broken_links(documents(), ROOT) == []


def test_commands_of_documents_are_valid() -> None:
    problems = {path: broken_commands(text) for path, text in documents().items() if path.startswith(PAGES)}

    assert {path: found for path, found in problems.items() if found} == {}


def test_flags_named_in_the_readme_exist() -> None:
    named = set(re.findall(r"`--([a-z]\w*)", (ROOT / "README.md").read_text(encoding="utf-8")))

    others = enjoy_flags.keys() | export_flags.keys() | page_flags.keys()
    assert named - {"help", "name"} - TRAIN.keys() - others == set()


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
