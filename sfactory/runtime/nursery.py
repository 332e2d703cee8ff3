"""Room: starting child processes. In: roles. Out: processes that main can watch.

Children are forked from a server process that has imported torch, numpy and gymnasium once (forkserver); see
docs/decisions/0001-start-method.md for the measurement.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from sfactory.runtime.child import Birth, child_main
from sfactory.runtime.resources import raise_file_limit
from sfactory.runtime.signals import signals_held_back

_PRELOAD = ["torch", "numpy", "gymnasium", "faster_fifo", "sfactory.preload"]

_SOCKET_DIR = "SFACTORY_SOCKET_DIR"  # see sfactory.preload; not imported from there, which would import everything


class Nursery:
    """Starts processes; ``open`` it as early as possible, it imports torch in the background."""

    def __init__(self) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)

    def open(self) -> None:
        """Start the server process. It is deaf to Ctrl-C and SIGTERM: a signal to the group is main's business.

        Before that the limit of open files is raised, which it and all children inherit.
        """
        raise_file_limit()
        resource_tracker.ensure_running()
        os.environ[_SOCKET_DIR] = util.get_temp_dir()
        with signals_held_back():
            forkserver.ensure_running()
        del os.environ[_SOCKET_DIR]

    def start(self, birth: Birth, role: Callable[..., None], *given: Any) -> ForkServerProcess:
        """Start a child that runs ``role(*given, row)``."""
        process = self._context.Process(target=child_main, args=(birth, role, *given), name=birth.name)
        process.start()
        return process

    def start_plain(self, target: Callable[..., None], *given: Any) -> ForkServerProcess:
        """Start a child that runs ``target(*given)`` and has no place on the boards."""
        process = self._context.Process(target=target, args=given)
        process.start()
        return process

    def pipe(self) -> tuple[Any, Any]:
        """A one-way pipe: (read end, write end)."""
        return self._context.Pipe(duplex=False)
