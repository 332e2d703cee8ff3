"""Blocks of code and commands of the documents."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from sfactory.cli.commands import SUBCOMMANDS

MODULES = {name: command.module.removeprefix("sfactory.") for name, command in SUBCOMMANDS.items()}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"python (?:-m sfactory\.([\w.-]+)|(scripts/\w+\.py))((?: [^`\n]*)?)")
_SHORT = re.compile(r"(?<=`)sfactory (?=[a-z])([\w-]+)")


def blocks(text: str, kind: str = "") -> list[str]:
    """The blocks of a kind, "python" or "" for commands, in their order."""
    return [block for found, block in _BLOCK.findall(text) if found == kind]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """What each command runs, a module of sfactory ("train") or a script ("scripts/bench.py"), and its words.

    Commands have the form ``python -m sfactory.train``, or in blocks and as code ``sfactory train``. One that does not
    exist is given as it is. Words that end in "..." are left out, and so are variables of a shell.
    """
    text = re.sub(r"\$seed|SEED", "1", re.sub(r"\\\n\s*", "", text))
    text = _BLOCK.sub(lambda block: re.sub(r"^sfactory ", "`sfactory ", block[0], flags=re.MULTILINE), text)
    text = _SHORT.sub(lambda short: f"python -m sfactory.{MODULES.get(short[1], short[1])}", text)
    for module, script, arguments in _COMMAND.findall(text):
        words = shlex.split(arguments, comments=True)
        yield module or script, [word for word in words if not word.startswith("$") and not word.endswith("...")]
