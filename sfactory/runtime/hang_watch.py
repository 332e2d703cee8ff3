"""Room: what halts a run in one process. In: its status board. Out: on stderr, the stacks of one that stands still.

In a parallel run main sees it from outside. Here the same process does everything, so a C thread is set to write the
stacks after STALL_S, which needs no lock of the interpreter, and is set anew as long as the board shows progress.
"""

from __future__ import annotations

import contextlib
import faulthandler
import threading
from collections.abc import Iterator
from types import TracebackType

from sfactory.runtime.stalls import STALL_S
from sfactory.shared.status import StatusBoard

_LOOK_S = STALL_S / 10
_JOIN_S = 5.0


class HangWatch:
    """Context in which a halt of STALL_S has the stacks written; work begun, steps and heartbeats are progress."""

    def __init__(self, status: StatusBoard) -> None:
        self._status = status
        self._lock = threading.Lock()
        self._paused = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="hang-watch", daemon=True)

    def __enter__(self) -> HangWatch:
        faulthandler.dump_traceback_later(STALL_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)
        faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside may take long without any progress, such as an update."""
        with self._lock:
            self._paused = True
            faulthandler.cancel_dump_traceback_later()
        try:
            yield
        finally:
            with self._lock:
                self._paused = False
                faulthandler.dump_traceback_later(STALL_S)

    def _look(self) -> None:
        before = self._progress()
        while not self._over.wait(_LOOK_S):
            after = self._progress()
            with self._lock:
                if after != before and not self._paused:
                    faulthandler.dump_traceback_later(STALL_S)
            before = after

    def _progress(self) -> list[float]:
        return self._status.values("env_steps", "") + self._status.values("heartbeat", "")
