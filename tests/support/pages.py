"""Blocks and commands of the documents. Runs the blocks of a page in order, and compares what they print with it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sfactory.cli.commands import SUBCOMMANDS
from tests.support.source import documents
from tests.support.warm_process import environment, finished

# A file is a block of this kind whose first line is its name in a comment.
_FILES = ("python", "toml")
_NAME = re.compile(r"# (\w+\.(?:py|toml))\n")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MODULES = {name: command.module.removeprefix("sfactory.") for name, command in SUBCOMMANDS.items()}
_COMMAND = re.compile(r"python (?:-m sfactory\.([\w.-]+)|(scripts/\w+\.py))((?: [^`\n]*)?)")
_SHORT = re.compile(r"(?<=`)sfactory (?=[a-z])([\w-]+)")
# Commands that set a machine up, or need what a test machine may lack.
_LEFT_OUT = ("pip ", "python3 -m venv", "tensorboard ")
_COLD = ("sfactory.plot",)  # what the warm process has not imported
_LIMIT_S = 800.0


class Block(NamedTuple):
    """A fenced block. kind: what stands behind its fence: "" for commands, "text" for what they print."""

    kind: str
    text: str

    @property
    def file(self) -> str:
        """The file that it is; "" if it is none."""
        head = _NAME.match(self.text) if self.kind in _FILES else None
        return head[1] if head else ""

    @property
    def commands(self) -> list[str]:
        """The commands of it, each as one line."""
        return re.sub(r" *\\\n *", " ", self.text).splitlines() if not self.kind else []


def blocks(path: str) -> list[Block]:
    """The blocks of the page ``path``."""
    return [Block(kind, text) for kind, text in _BLOCK.findall(documents()[path])]


def python_of(path: str) -> list[str]:
    """The blocks of Python of the page ``path``."""
    return [block.text for block in blocks(path) if block.kind == "python"]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """What each command of a page runs, a module of sfactory ("train") or a script ("scripts/bench.py"), and its words.

    Commands have the form ``python -m sfactory.train``, or in blocks and as code ``sfactory train``. One that does not
    exist is given as it is. Words that end in "..." are left out, and so are variables of a shell.
    """
    text = re.sub(r"\$seed|SEED", "1", re.sub(r"\\\n\s*", "", text))
    text = _BLOCK.sub(lambda block: re.sub(r"^sfactory ", "`sfactory ", block[0], flags=re.MULTILINE), text)
    text = _SHORT.sub(lambda short: f"python -m sfactory.{MODULES.get(short[1], short[1])}", text)
    for module, script, arguments in _COMMAND.findall(text):
        words = shlex.split(arguments, comments=True)
        yield module or script, [word for word in words if not word.startswith("$") and not word.endswith("...")]


def _to_module(command: str) -> tuple[str, list[str]]:
    """The module and the words of a command of sfactory: ``sfactory train ...`` or ``python -m sfactory.train ...``."""
    words = shlex.split(command)
    if words[:2] == ["python", "-m"]:
        return words[2], words[3:]
    known = SUBCOMMANDS[words[1]]
    return known.module, [*known.words, *words[2:]]


def _printed(command: str, folder: Path) -> str:
    """What ``command`` prints in ``folder``, which has to end well."""
    words = shlex.split(command)
    if words[0] == "sfactory" or words[:2] == ["python", "-m"]:
        module, words = _to_module(command)
        argv = [sys.executable, "-m", module, *words]
    else:
        module, argv = "", [sys.executable if words[0] == "python" else words[0], *words[1:]]
    if module and module not in _COLD:
        done = finished(module, *words, cwd=folder, within_s=_LIMIT_S)
    else:
        done = subprocess.run(
            argv, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stderr + done.stdout


def run_page(path: str, folder: Path) -> Iterator[tuple[str, str]]:
    """(command or shown text, what was printed) of each block of the page, run in ``folder``."""
    printed = ""
    for block in blocks(path):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "text":
            yield block.text, printed
        else:
            printed = ""
            for command in block.commands:
                if command.startswith("cd "):
                    folder = folder / command.removeprefix("cd ")
                elif not command.startswith(_LEFT_OUT):
                    own = _printed(command, folder)
                    printed += own
                    yield command, own


def missing_lines(shown: str, printed: str) -> list[str]:
    """The lines of ``shown`` that are not in ``printed``; numbers may differ, and ``...`` stands for anything."""
    return [line for line in shown.splitlines() if line and not re.search(_pattern(line), printed, re.MULTILINE)]


def _pattern(line: str) -> str:
    parts = re.split(r"(\d[\d.,]*(?:e-?\d+)?|\.\.\.|\s+)", line)
    return "".join(
        r"[^\n]*"
        if part == "..."
        else r"[\d.,e-]+"
        if part[:1].isdigit()
        else r"\s+"
        if part.isspace()
        else re.escape(part)
        for part in parts
    )
