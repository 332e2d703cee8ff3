"""Room: work that may never come back. In: a loop that waits on rings. Out: its end, its failure, or neither.

NOTE [Who saves waits on no ring]: the lock of a faster-fifo ring is not robust: a process that is killed while
it puts or gets holds it for ever, and whoever uses that ring next is stuck in C code, deaf to every time limit.
So the main thread of a learner, which saves at the end, uses one ring only, that to main, which no other process
writes; all others belong to a thread that it leaves behind if need be. ``Learning`` has a lock of its own, so that
nothing is saved while something is learned.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sfactory.clock import BLOCK_S

_log = logging.getLogger(__name__)

_LEAVE_S = 2.0  # enough to come back from a wait and a copy; training has the lock of Learning to be waited for


class RingThread:
    """Runs ``work`` in a thread of its own, which ends with the process if it is stuck."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rings", daemon=True)

    def run(self, over: Callable[[], bool]) -> None:
        """Start, and block until ``work`` has ended or ``over()`` is true, and _LEAVE_S more for it to end then.

        Raises what ``work`` has raised.
        """
        self._thread.start()
        while self._thread.is_alive() and not over():
            self._thread.join(BLOCK_S)
        self._thread.join(_LEAVE_S)
        self._raise_failure()

    def leave(self) -> None:
        """Once there is nothing left to save: raises what ``work`` has raised meanwhile; tells of it if it is stuck."""
        self._thread.join(BLOCK_S)
        self._raise_failure()
        if self._thread.is_alive():
            _log.warning("left a thread behind that waits for a ring: a process was killed while it used that ring")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as failure:  # raised again in the thread that waits
            self._failure = failure
