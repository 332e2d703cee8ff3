"""Trains: ``python -m sfactory.train --env=ENV [flags]``; with ``--benchmark=True`` it measures throughput instead.

stdout carries one JSON line, or on a terminal the same for people to read; everything else goes to stderr, where the
last line is ``RESULT ...``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfactory.clock import now
from sfactory.config.argv import asks_for_help
from sfactory.errors import ExitCode
from sfactory.process.command import Command, CommandModule, importing_torch, show_result, train_command
from sfactory.process.signals import signals_held_back
from sfactory.ranks.place import EXIT_CODE, LAST_LINE, ONE_RANK, Place
from sfactory.system.cores import set_for_children

if TYPE_CHECKING:
    from sfactory.experiment.summary import Result, Summary

_STARTED_AT = now()
_REFUSED = " (this start was refused)"


def main(argv: Sequence[str] | None = None) -> int:
    """Train as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    set_for_children()
    with _TrainCommand(arguments) as command:
        # A signal inside an import would leave half a module, and the answer to a signal needs these two.
        with signals_held_back():
            from sfactory.config.resolve import read_command_line
            from sfactory.ranks.rules import devices_to_start, for_rank
            from sfactory.remote.joining import require_joining

            if not asks_for_help(arguments):  # that comes at once: this imports numpy
                import sfactory.experiment.summary  # noqa: F401

        command.place = place = Place.of_environment()
        place.take_share()  # before flags get defaults by the number of cores
        resolved = read_command_line(arguments, place.world > 1)
        if devices := devices_to_start(resolved, place):
            with importing_torch("" if resolved.config.report.quiet else f"starting {len(devices)} ranks"):
                from sfactory.launch.local_ranks import train_in_ranks

            command.exit_code, last_line = train_in_ranks(devices, arguments)
            print(last_line, file=sys.stderr, flush=True)
            return command.exit_code
        resolved = for_rank(resolved, place)
        require_joining(resolved.config.sampling)
        report = resolved.config.report
        # Imported only now, so that a mistyped flag is reported at once. torch comes with the session, while the fork
        # server imports it too.
        with importing_torch("" if report.quiet else f"starting {resolved.config.run.env}"):
            from sfactory.process.spawn import Spawner

            spawner = Spawner(printed_level=report.printed_level)
            spawner.open()
            from sfactory.runner.session import Session

        logging.basicConfig(level=report.printed_level, format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S")
        session = Session(resolved, arguments, spawner, command.interrupts, _STARTED_AT, place)
        if resolved.config.benchmark.benchmark:
            show_result(session.benchmark().to_dict())
        else:
            outcome = session.train()
            if not place.rank:
                show_result(outcome.summary.to_dict())
            if outcome.error is not None:
                command.exit_code = int(outcome.error.exit_code)
            elif outcome.status == "interrupted":
                command.exit_code = command.interrupts.exit_code
    command.place.leave(EXIT_CODE, str(command.exit_code))
    return command.exit_code


class _TrainCommand(Command):
    """Ends with a RESULT line, also where a run did not start or failed before it had a summary."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__("sf-main")
        self._arguments = arguments
        self.place = ONE_RANK

    def on_interrupt(self) -> None:
        """Report what an earlier session has reached; it is still valid."""
        earlier = self._print_end("interrupted", "", can_resume=True)
        if earlier is not None and not self.place.rank:
            show_result(earlier.ended("interrupted").to_dict())

    def on_failure(self, cause: str) -> None:
        """Say how to try again, unless it would be refused again."""
        refused = self.exit_code == ExitCode.REFUSED
        self._print_end("failed", cause, can_resume=not refused, note=_REFUSED if refused else "")

    def _print_end(self, status: Result, cause: str, can_resume: bool, note: str = "") -> Summary | None:
        """Print the RESULT line with what an earlier session of the run has reached; returns its summary."""
        from sfactory.config.resolve import resumed_dir
        from sfactory.config.saved_config import SUMMARY_NAME
        from sfactory.experiment.run_dir import saved_env_steps, shown_env_steps
        from sfactory.experiment.summary import Summary, result_line

        run_dir = resumed_dir(self._arguments)  # None for a benchmark or a fresh run
        earlier = None if run_dir is None else Summary.read(run_dir / SUMMARY_NAME)
        saved = 0 if run_dir is None else saved_env_steps(run_dir)
        steps = saved if earlier is None else earlier.env_steps
        if earlier is not None and not earlier.policies:
            steps = max(steps, saved)  # a session that was killed has left no summary
        if run_dir is not None:
            steps = max(steps, shown_env_steps(run_dir))  # it has shown what it may not have saved
        line = result_line(
            status,
            env_steps=steps,
            return_mean=None if earlier is None else earlier.episode_return_mean,
            resume_command=train_command(self._arguments) if can_resume else "",
            cause=cause,
            saved_env_steps=saved if can_resume else None,
        )
        if note and steps:
            note = f"{_REFUSED[:-1]}; the run is as it was)"
        line = f"rank {self.place.rank} {status}{cause and f': {cause}'}" if self.place.rank else line + note
        if not self.place.leave(LAST_LINE, line):
            print(line, file=sys.stderr, flush=True)
        return earlier


sys.modules[__name__].__class__ = CommandModule

if __name__ == "__main__":
    sys.exit(main())
