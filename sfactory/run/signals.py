"""Room: Ctrl-C, SIGTERM and SIGHUP. In: signals. Out: a count, a wake-up, or ``Interrupted`` during start-up.

The first signal saves and stops, the second ends the run at once. Imports no torch, so that it can be in force
before anything slow happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal arrived while ``Interrupts.raising``; not an Exception, so that nothing swallows it."""


class Interrupts:
    """Context in which the handled signals are counted.

    signum: the first signal that came, or None. count: how many came. wake_fd: readable after each.
    raising: True (start-up) raises Interrupted where the signal hits; False only counts.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.count = 0
        self.raising = True
        self.wake_fd, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for signum in HANDLED:
            self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.raising = False
        if self.count:
            return  # the process is on its way out, and a second signal must not change how it ends
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @property
    def exit_code(self) -> int:
        """128 + the first signal."""
        assert self.signum is not None, "no signal came"
        return 128 + self.signum

    def drain(self) -> None:
        """Empty the wake-up pipe."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        self.count += 1
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"!")
        if self.raising:
            raise Interrupted(signum)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Block the handled signals; processes started inside inherit the block, so a signal to the group spares them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
