"""Plays saved policies against each other: ``python -m sfactory.match RUN ... [flags]``.

stdout carries one JSON line with the table and ratings; everything else goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sfactory.config.commands import read_match_line
from sfactory.process.command import Command, importing_torch


def main(argv: Sequence[str] | None = None) -> int:
    """Play as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-match") as command:
        runs, config = read_match_line(arguments)

        def play() -> str:
            # Imported only now, so that a mistyped flag is reported at once.
            with importing_torch(f"playing {' '.join(runs)}"):
                from sfactory.play.matches import play_matches

            return play_matches(runs, config)

        command.print_result(play)
    return command.exit_code


if __name__ == "__main__":
    sys.exit(main())
