"""Runs several commands at once that take turns on the machine.

This module is imported by other scripts. All commands start at once, and all but one are paused (SIGSTOP) at any
moment, so that a drift of the machine that is longer than a turn affects all alike. Each command gets the same share of
time until its end, also after others have ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from scripts.command import RUN_LIMIT_S, Command, Output


class Order(NamedTuple):
    """A command line, its folder, and additional environment variables."""

    argv: list[str]
    cwd: Path
    environment: Mapping[str, str]


def run_in_turns(orders: Mapping[str, Order], turn_s: float) -> dict[str, Output]:
    """Run all commands to their ends. Exits with the error if one fails, or all take longer than RUN_LIMIT_S."""
    end = time.monotonic() + RUN_LIMIT_S
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        commands = {
            name: stack.enter_context(Command(order.argv, folder, order.cwd, order.environment))
            for name, order in orders.items()
        }
        stack.callback(_signal, commands, signal.SIGCONT)  # or they would not hear that they are to end
        while running := [command for command in commands.values() if command.exit_code is None]:
            if time.monotonic() > end:
                raise running[0].failure(f"took longer than {RUN_LIMIT_S:g} s in turns")
            for name, command in commands.items():
                turn_ends = time.monotonic() + turn_s
                _signal({other: each for other, each in commands.items() if other != name}, signal.SIGSTOP)
                _signal({name: command}, signal.SIGCONT)
                time.sleep(max(0.0, turn_ends - time.monotonic()))
        for command in commands.values():
            if command.exit_code:
                raise command.failure(f"ended with {command.exit_code}")
        return {name: Output(command.stdout, command.stderr) for name, command in commands.items()}


def _signal(commands: Mapping[str, Command], number: signal.Signals) -> None:
    for command in commands.values():
        if command.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.session, number)
