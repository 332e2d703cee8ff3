"""Room: waiting, once, for something another process does. In: ``open`` by one. Out: every waiter goes on.

An eventfd that stays readable once opened: it blocks without polling, holds no lock, and has no name.
"""

from __future__ import annotations

import os
import select
import weakref
from multiprocessing import reduction
from multiprocessing.context import assert_spawning
from typing import Any


class Gate:
    """Closed until ``open`` is called in any process; then open for ever."""

    def __init__(self) -> None:
        self._hold(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def _hold(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)

    def open(self) -> None:
        """Let all present and future waiters pass."""
        os.eventfd_write(self._fd, 1)

    def wait(self, timeout: float) -> bool:
        """Block up to ``timeout`` seconds; True if the gate is open."""
        readable, _, _ = select.select([self._fd], [], [], timeout)
        return bool(readable)

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)  # see SharedArrays
        return (_attach, (reduction.DupFd(self._fd),))


def _attach(handle: Any) -> Gate:
    gate = Gate.__new__(Gate)
    gate._hold(handle.detach())
    return gate
