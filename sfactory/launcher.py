"""Starts many runs: ``python -m sfactory.launcher --run=WHAT [flags]``.

stdout gets one JSON line with the result; starts, ends and the table of runs go to stderr.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from sfactory.config.launcher import LauncherConfig, read_launcher_line
from sfactory.process.command import Command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-launcher") as command:
        config = read_launcher_line(arguments)
        to_repeat = shlex.join([sys.executable, "-m", "sfactory.launcher", *arguments])
        command.print_result(lambda: _launch(config, to_repeat, command))
    return command.exit_code


def _launch(config: LauncherConfig, to_repeat: str, command: Command) -> str:
    # Imported only now, so that a mistyped flag is reported at once.
    from sfactory.launch.launch import launch

    line, code = launch(config, to_repeat, command.interrupts)
    command.exit_code = code
    return line


if __name__ == "__main__":
    sys.exit(main())
