"""Runs loops in threads, waits for them, and raises the first failure among them.

NOTE [Saving waits for no ring]: a process that is killed while it puts into a faster-fifo ring or gets from it holds
its lock for ever, and all other users of that ring are stuck in C code, without any timeout. So the main thread of a
learner, which saves at the end, and the thread that trains use one ring only, that to main, which no other process
writes. Other rings are used by threads that may stay stuck. The lock of ``Learner`` keeps training and saving apart.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sfactory.clock import BLOCK_S, Deadline
from sfactory.system.gpu import use_device

_log = logging.getLogger(__name__)

_LEAVE_S = 2.0  # for a wait and a copy; ``Learner.finish`` waits for training by its lock


class Threads:
    """Loops in daemon threads, which work on ``device``: those that are stuck end with the process."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._changed = threading.Event()  # a loop has ended or failed

    def start(self, name: str, loop: Callable[[], None]) -> None:
        """Run ``loop`` in a thread called ``name``."""

        def run() -> None:
            try:
                use_device(self._device)
                loop()
            except BaseException as failure:  # raised again in the thread that waits
                self._failures.append(failure)
            finally:
                self._changed.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def failed(self) -> bool:
        """Whether a loop has raised; the others should end then."""
        return bool(self._failures)

    def wait(self, over: Callable[[], bool]) -> None:
        """Block until all loops have ended, or _LEAVE_S after ``over()``; raises what a loop raises, at once."""
        while not over() and self._alive():
            self._changed.wait(BLOCK_S)
            self._changed.clear()
            self._raise_failure()
        self._join(_LEAVE_S)

    def leave(self) -> None:
        """Call when nothing is left to save: raises the exception of a loop, warns of threads that are stuck."""
        self._join(BLOCK_S)
        if self._alive():
            _log.warning(
                "left a thread behind that waits for a ring: a process was killed or stopped while it used that ring"
            )

    def _join(self, seconds: float) -> None:
        deadline = Deadline(seconds)
        for thread in self._threads:
            thread.join(deadline.left)
            self._raise_failure()

    def _alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]
