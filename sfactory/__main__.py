"""The command ``sfactory``, also as ``python -m sfactory``: runs a subcommand, or lists them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from sfactory import __version__
from sfactory.cli.commands import SUBCOMMANDS, overview
from sfactory.config.flags import did_you_mean, shown
from sfactory.errors import ExitCode


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that ``argv`` (default: the command line) begins with; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = (arguments[0] if arguments else "").replace("_", "-")
    if name in ("--help", "-h"):
        print(overview(), end="")
        return int(ExitCode.DONE)
    if name == "--version":
        print(__version__)
        return int(ExitCode.DONE)
    if name not in SUBCOMMANDS:
        if name:
            near = did_you_mean(name, SUBCOMMANDS, prefix="sfactory ")
            print(f"error: {shown(name)!r}: there is no such command{near}", file=sys.stderr)
        print(overview(), end="", file=sys.stderr)
        return int(ExitCode.REFUSED)
    with contextlib.suppress(FileNotFoundError):  # the subcommand says that the folder is gone
        if os.getcwd() not in sys.path:  # as with python -m; a script has its own folder there
            sys.path.insert(0, os.getcwd())
    code: int = import_module(SUBCOMMANDS[name].module).main([*SUBCOMMANDS[name].words, *arguments[1:]])
    return code


if __name__ == "__main__":
    sys.exit(main())
