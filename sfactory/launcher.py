"""``python -m sfactory.launcher --run=WHAT [flags]`` starts many runs.

stdout gets one JSON line with the result; starts, ends and the table of runs go to stderr.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from sfactory.config.launcher import LauncherConfig, read_launcher_line
from sfactory.errors import ExitCode
from sfactory.process.command import result_of, run_command
from sfactory.process.signals import Interrupts

_PROG = "sfactory.launcher"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = shlex.join([sys.executable, "-m", _PROG, *arguments])
    return run_command(
        "sf-launcher",
        lambda interrupts: _run(read_launcher_line(arguments, prog=_PROG), command, interrupts),
    )


def _run(config: LauncherConfig, command: str, interrupts: Interrupts) -> int:
    codes: list[ExitCode | int] = []

    def launch() -> str:
        # Imported here, so that errors in flags are reported quickly.
        from sfactory.launch.launch import Launcher

        line, code = Launcher(config, command, interrupts).run()
        codes.append(code)
        return line

    print(result_of(launch), flush=True)
    return int(codes[0])


if __name__ == "__main__":
    sys.exit(main())
