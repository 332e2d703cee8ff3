"""Plants small defects in sfactory/, one at a time, and reports which tests notice each.

    python scripts/mutants.py --out docs/mutants.json [--suite long] [--only NAME ...] [--checkout PATH]

Each defect of mutants.txt is written into a copy of the checkout in turn. Tests run in steps until one fails: the
files that most likely notice it, unit tests of the package, all unit tests, flow and faults. Exit codes: 0, all were
noticed; 1, some were not; 2, the table does not fit the checkout, or the likely tests fail without a defect.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium  # noqa: F401 - here, so that each run of tests need not import it
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = (".*", "__pycache__", "*.egg-info", "build", "dist", "train_dir")
MARKS = {"test": "not long and not gpu", "long": "not gpu"}
TEST_S = 200  # bound on one test; the project's own is longer
TABLE = Path(__file__).with_suffix(".txt")
LIKELY_S, PACKAGE_S, ALL_S = 600, 900, 5400  # bounds on one step


class Mutant(NamedTuple):
    """``likely``: names of test files without ``test_``. ``changes``: pairs of text and replacement."""

    package: str
    name: str
    likely: list[str]
    changes: list[tuple[str, str]]


def read_table() -> list[Mutant]:
    """All mutants; the form of the table stands at its top."""
    mutants: list[Mutant] = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if head := re.fullmatch(r"\[(\w+)\] (\w+): (.+)", line):
            mutants.append(Mutant(head[1], head[2], head[3].split(), []))
        elif not line.startswith("#"):
            text, arrow, replacement = line[2:].replace("\\n", "\n").partition(" ==> ")
            assert arrow, f"{TABLE}: no arrow in {line!r}"
            mutants[-1].changes.append((text, replacement))
    return mutants


class Tree:
    """A copy of a checkout in which defects are planted and undone."""

    def __init__(self, checkout: Path, copy: Path, suite: str) -> None:
        self._copy, self._marks = copy, MARKS[suite]
        shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)
        # Comes before the installed checkout, in children too. Compiled code is kept, see ``write``.
        os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": ""}
        sys.dont_write_bytecode = False
        code = "import sfactory; print(sfactory.__file__)"
        found = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
        if not found.stdout.startswith(str(copy)):
            sys.exit(f"the copy is not imported, but {found.stdout or found.stderr}")
        self._sources = {path: path.read_text(encoding="utf-8") for path in sorted((copy / "sfactory").rglob("*.py"))}

    def place_of(self, mutant: Mutant) -> tuple[Path, str] | None:
        """The file that holds the mutant's text, and the file's text with the defect; None if there is no such file."""
        for text, replacement in mutant.changes:
            found = [path for path, source in self._sources.items() for _ in range(source.count(text))]
            if len(found) == 1:
                return found[0], self._sources[found[0]].replace(text, replacement)
        return None

    def write(self, path: Path, text: str | None = None) -> None:
        """Plant a defect, or with no text undo it."""
        path.write_text(self._sources[path] if text is None else text, encoding="utf-8")
        # Python takes compiled code by time and size, which two defects in one second may share.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def files(self, names: Sequence[str]) -> list[str]:
        """Test files of these names: unit tests, or others where there is no such unit test."""
        found = [
            sorted((self._copy / "tests/unit").rglob(f"test_{name}.py"))
            or sorted((self._copy / "tests").rglob(f"test_{name}.py"))
            for name in names
        ]
        return [str(path.relative_to(self._copy)) for paths in found for path in paths]

    def steps(self, mutant: Mutant) -> Iterator[tuple[str, list[str], float]]:
        """(name, paths of tests, most seconds), the cheapest first."""
        if likely := self.files(mutant.likely):
            yield "likely", likely, LIKELY_S
        package = f"tests/unit/{mutant.package}"
        if (self._copy / package).is_dir():
            yield "package", [package], PACKAGE_S
        yield "unit", ["tests/unit"], ALL_S
        yield "flow and faults", ["tests/flow", "tests/faults", "tests/learning"], ALL_S

    def failing(self, paths: Sequence[str], most_s: float) -> str | None:
        """The first test that fails, a text in its place if pytest itself failed, or None."""
        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", f"--timeout={TEST_S}", "-m", self._marks]
        with tempfile.TemporaryFile("w+") as output:
            pid = os.fork()  # this process has imported what takes long
            if pid == 0:
                _run_tests(self._copy, output.fileno(), [*options, "--ignore=tests/unit/scripts", *paths])
            end = time.monotonic() + most_s
            while (found := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
                time.sleep(0.05)
            if found[0] == 0:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None  # slow, which proves nothing: a test that hangs fails after TEST_S
            output.seek(0)
            text = output.read()
        code = os.waitstatus_to_exitcode(found[1])
        if code in (0, 5):
            return None
        named = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        return named[0] if named else f"pytest ended with exit code {code}: {text[-300:]}"


def _run_tests(copy: Path, output: int, arguments: list[str]) -> None:
    """Run pytest in this process, which is a fork, and end it."""
    os.setsid()
    os.chdir(copy)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path.insert(0, str(copy))
    os._exit(int(pytest.main(arguments)))


def look_for(tree: Tree, mutant: Mutant, deepest: str | None) -> dict[str, Any]:
    """Plant the defect, run tests until one fails, undo it. ``deepest``: the last step to run; None is all."""
    path, text = tree.place_of(mutant) or sys.exit(f"{mutant.name} has no place")
    since, noticed, step = time.monotonic(), None, ""
    tree.write(path, text)
    try:
        for step, paths, most_s in tree.steps(mutant):
            noticed = tree.failing(paths, most_s)
            if noticed is not None or step == deepest:
                break
    finally:
        tree.write(path)
    seconds = round(time.monotonic() - since, 1)
    return {"mutant": mutant.name, "package": mutant.package, "noticed_by": noticed, "step": step, "seconds": seconds}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", choices=tuple(MARKS), default="test", help="without or with the long tests")
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME", help="names of mutants")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="with its own .venv")
    parser.add_argument("--deepest", choices=("likely", "package", "unit"), default=None, help="the last step to run")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file, written after each mutant")
    options = parser.parse_args(arguments)
    if unknown := set(options.only or ()) - {mutant.name for mutant in read_table()}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    return options


def _refuse(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 2


def main() -> int:
    options = parse()
    mutants = [mutant for mutant in read_table() if options.only is None or mutant.name in options.only]
    python = options.checkout.resolve() / ".venv" / "bin" / "python"
    if Path(sys.executable) != python:  # the checkout's Python finds the checkout's sfactory_envs
        os.execv(python, [str(python), *sys.argv])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(options.checkout.resolve(), Path(folder), options.suite)
        if lost := [mutant.name for mutant in mutants if tree.place_of(mutant) is None]:
            return _refuse(f"none of their texts stands exactly once: {', '.join(lost)}")
        likely = tree.files(sorted({name for mutant in mutants for name in mutant.likely}))
        if failing := tree.failing([path for path in likely if "unit" in path], ALL_S):
            return _refuse(f"the tests fail without a defect: {failing}")
        table = []
        for mutant in mutants:
            row = look_for(tree, mutant, options.deepest)
            table.append(row)
            by = row["noticed_by"] or "NOT NOTICED"
            print(f"{mutant.package:11s} {mutant.name:45s} {row['seconds']:6.1f} s  {row['step']}: {by}", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    noticed = sum(row["noticed_by"] is not None for row in table)
    print(f"{noticed} of {len(table)} noticed")
    return 0 if noticed == len(table) else 1


if __name__ == "__main__":
    sys.exit(main())
