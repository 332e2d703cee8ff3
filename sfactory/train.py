"""Trains: ``python -m sfactory.train --env=ENV [flags]``; with ``--benchmark=True`` it measures throughput instead.

stdout carries one JSON line; everything else goes to stderr, where the last line is ``RESULT ...``.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfactory.clock import now
from sfactory.errors import ConfigError, named
from sfactory.process.command import Command, train_command
from sfactory.process.signals import signals_held_back
from sfactory.system.cores import set_for_children

if TYPE_CHECKING:
    from sfactory.experiment.summary import Result, Summary

_STARTED_AT = now()


def main(argv: Sequence[str] | None = None) -> int:
    """Train as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    set_for_children()
    with _TrainCommand(arguments) as command:
        # A signal inside an import would leave half a module, and the answer to a signal needs these two.
        with signals_held_back():
            import sfactory.experiment.summary  # noqa: F401
            from sfactory.config.resolve import read_command_line

        resolved = read_command_line(arguments)
        # Imported only now, so that a mistyped flag is reported at once. torch comes with the session, while the fork
        # server imports it too; torch calls Python from C++ that ends the process if a signal raises.
        with signals_held_back():
            from sfactory.process.spawn import Spawner

        spawner = Spawner()
        spawner.open()
        with signals_held_back():
            from sfactory.runner.session import Session

        logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S")
        session = Session(resolved, arguments, spawner, command.interrupts, _STARTED_AT)
        if resolved.config.benchmark.benchmark:
            print(session.benchmark().to_json(), flush=True)
        else:
            outcome = session.train()
            print(outcome.summary.to_json(), flush=True)
            if outcome.error is not None:
                command.exit_code = int(outcome.error.exit_code)
            elif outcome.status == "interrupted":
                command.exit_code = command.interrupts.exit_code
    return command.exit_code


class _TrainCommand(Command):
    """Ends with a RESULT line, also where a run did not start or failed before it had a summary."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__("sf-main")
        self._arguments = arguments

    def on_interrupt(self) -> None:
        """Report what an earlier session has reached; it is still valid."""
        earlier = _earlier_summary(self._arguments)
        self._print_end("interrupted", earlier=earlier)
        if earlier is not None:
            print(dataclasses.replace(earlier, status="interrupted").to_json(), flush=True)

    def on_failure(self, cause: str) -> None:
        """Say how to try again."""
        self._print_end("failed", cause)

    def _print_end(self, status: Result, cause: str = "", earlier: Summary | None = None) -> None:
        from sfactory.experiment.summary import result_line

        line = result_line(
            status,
            env_steps=0 if earlier is None else earlier.env_steps,
            return_mean=None if earlier is None else earlier.episode_return_mean,
            resume_command=train_command(self._arguments),
            cause=cause,
        )
        print(line, file=sys.stderr, flush=True)


def _earlier_summary(arguments: Sequence[str]) -> Summary | None:
    """The summary that the last session of the same run has left; None for a benchmark or a fresh run."""
    from sfactory.config.resolve import read_command_line
    from sfactory.experiment.summary import Summary

    try:
        config = read_command_line(arguments).config
    except (ConfigError, SystemExit):
        return None
    except Exception as error:  # an env module may not be importable again after a signal has cut its import short
        print(f"the summary of the run could not be read: {named(error)}", file=sys.stderr)
        return None
    if config.benchmark.benchmark:
        return None
    return Summary.read(Path(config.run.train_dir) / config.run.experiment / "summary.json")


if __name__ == "__main__":
    sys.exit(main())
