"""Checks an environment: ``python -m sfactory.check_env --env=ENV [flags]``.

The report goes to stderr, and stdout carries it as one JSON line. The exit code is 2 if the env violates its interface.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from sfactory.config.argv import scan, words_of
from sfactory.config.commands import check_flags, read_check_line
from sfactory.errors import ExitCode
from sfactory.process.command import Command, importing_torch
from sfactory.process.signals import signals_held_back
from sfactory.system.cores import set_for_children

_OF_CHECK = ("steps", "seed", "reset_timeout_seconds")


def main(argv: Sequence[str] | None = None) -> int:
    """Check as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    set_for_children()
    with Command("sf-check") as command:
        settings = read_check_line(arguments)
        with signals_held_back():
            from sfactory.config.resolve import read_command_line

        given = train_flags(arguments)
        # As of a new run, whatever runs there are.
        resolved = read_command_line([*words_of(given), "--restart_behavior=restart"])
        given["env"] = resolved.config.run.env
        for warning in resolved.warnings:
            print(warning, file=sys.stderr)

        def check() -> str:
            # Imported only now, so that a mistyped flag is reported at once.
            with importing_torch(f"checking {resolved.config.run.env}"):
                from sfactory.process.spawn import Spawner

                spawner = Spawner()
                spawner.open()
                from sfactory.env.factory import EnvFactory
                from sfactory.planning.env_inspection import inspect_in_process
                from sfactory.planning.env_report import fit, json_of, text_of

            factory = EnvFactory.of(resolved.config)
            report = inspect_in_process(spawner, factory, settings.steps, settings.seed, settings.reset_timeout_seconds)
            fits = fit(report, resolved, given)
            print(text_of(report, fits), file=sys.stderr, flush=True)
            if report.of_kind("violation"):
                command.exit_code = int(ExitCode.REFUSED)
            return json_of(report, fits)

        command.print_result(check)
    return command.exit_code


def train_flags(argv: Sequence[str]) -> dict[str, Any]:
    """The flags of ``argv``, which is known to be right, that train takes, too: those that name the env.

    They are all passed on, also one with the default of its schema, since a family may have another.
    """
    given = scan(argv, check_flags).values
    return {name: value for name, value in given.items() if name not in _OF_CHECK and value is not None}


if __name__ == "__main__":
    sys.exit(main())
