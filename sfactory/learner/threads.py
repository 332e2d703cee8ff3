"""Room: the threads of a learner. In: loops. Out: their ends, or the first failure among them, at once.

NOTE [Who saves waits on no ring]: the lock of a faster-fifo ring is not robust: a process that is killed while
it puts or gets holds it for ever, and whoever uses that ring next is stuck in C code, deaf to every time limit.
So the main thread of a learner, which saves at the end, uses one ring only, that to main, which no other process
writes; so does the one that trains. All others belong to threads that are left behind if need be. ``Learner`` has a
lock of its own, so that nothing is saved while something is learned.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sfactory.clock import BLOCK_S, Deadline

_log = logging.getLogger(__name__)

_LEAVE_S = 2.0  # enough to come back from a wait and a copy; training has the lock of Learning to be waited for


class Threads:
    """Loops that run side by side, each to its own end. Those that are stuck end with the process."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._changed = threading.Event()  # one has ended or failed

    def start(self, name: str, loop: Callable[[], None]) -> None:
        """Run ``loop`` in a thread called ``name``."""

        def run() -> None:
            try:
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
        """Block until all loops have ended or ``over()`` is true, and _LEAVE_S more for them to end then.

        Raises what a loop has raised, as soon as it has.
        """
        while not over() and self._alive():
            self._changed.wait(BLOCK_S)
            self._changed.clear()
            self._raise_failure()
        self._join(_LEAVE_S)

    def leave(self) -> None:
        """Once nothing is left to save: raises what a loop has raised meanwhile, tells of those that are stuck."""
        self._join(BLOCK_S)
        if self._alive():
            _log.warning("left a thread behind that waits for a ring: a process was killed while it used that ring")

    def _join(self, seconds: float) -> None:
        deadline = Deadline(seconds)
        for thread in self._threads:
            thread.join(deadline.left)
            self._raise_failure()
        self._raise_failure()

    def _alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]
