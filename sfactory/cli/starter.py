"""Writes a first project that runs: ``sfactory init [DIR]``. Its files are those of the folder ``starter``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from sfactory.config.argv import asks_for_help
from sfactory.errors import ConfigError
from sfactory.process.command import Command

FILES = ("my_env.py", "my_encoder.py", "config.yaml", "test_project.py", "README.md")
_SOURCE = Path(__file__).with_name("starter")
_USAGE = "usage: sfactory init [DIR]"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the project into the folder that ``argv`` names (default: the current one); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-init") as command:
        if asks_for_help(arguments):
            print(f"{_USAGE}\n\nWrites {', '.join(FILES)} into DIR (default: here).")
            return command.exit_code
        if len(arguments) > 1 or (arguments[:1] and arguments[0].startswith("-")):
            raise ConfigError([_USAGE])
        folder = Path(arguments[0] if arguments else ".")
        write_project(folder)
        enter = [] if folder.resolve() == Path.cwd() else ["  " + shlex.join(["cd", str(folder)])]
        print("\n".join([f"{len(FILES)} files are written; next:", *enter, "  sfactory train --config=config.yaml"]))
    return command.exit_code


def write_project(folder: Path) -> None:
    """Write the files into ``folder``, which is created if it is missing.

    Raises ConfigError, with nothing written, if one of them exists or the folder cannot be written.
    """
    if taken := [name for name in FILES if os.path.lexists(folder / name)]:
        raise ConfigError([f"{folder / name}: exists, and is not overwritten; name another folder" for name in taken])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write((_SOURCE / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{folder} cannot be written: {error.strerror}"]) from error


if __name__ == "__main__":
    sys.exit(main())
