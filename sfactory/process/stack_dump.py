"""Asks a child process for its Python stacks, to show where it hangs.

A handler in C writes them into a nameless file that main has opened, even while C code holds the interpreter's lock.
A child without a handler would be killed by the signal, and is not asked.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import weakref
from multiprocessing import connection, reduction
from multiprocessing.context import assert_spawning
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sfactory.clock import Deadline
from sfactory.shared.memory import attach
from sfactory.system.operating_system import signal_number

STACK_S = 1.0  # seconds that a child has to answer
_SIGNAL = signal_number("SIGUSR2")
_MAX_BYTES = 65_536
STOPPED = "stopped (by SIGSTOP or a debugger)"


class StackDump:
    """Holds the stacks of one child. Is passed to it while it is started, as SharedArrays are."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = os.memfd_create("sfactory-stack", os.MFD_CLOEXEC) if fd is None else fd
        weakref.finalize(self, os.close, self._fd)

    def answer(self) -> None:
        """In the child: write the stacks of all threads whenever main asks."""
        faulthandler.register(_SIGNAL, file=self._fd, all_threads=True, chain=False)

    def request(self, process: BaseProcess) -> StackRequest:
        """In main: ask the child for its stacks."""
        assert process.pid is not None, "it was started"
        if _catches(process.pid):
            os.lseek(self._fd, 0, os.SEEK_SET)  # the child's descriptor shares the position: drop an earlier answer
            os.ftruncate(self._fd, 0)
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(process.pid, _SIGNAL)
        return StackRequest(self, process)

    def read(self) -> str:
        """In main: the stacks that the child has written so far, or ''."""
        return os.pread(self._fd, _MAX_BYTES, 0).decode(errors="replace")

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)  # see SharedArrays
        return (attach, (StackDump, reduction.DupFd(self._fd)))


class StackRequest:
    """A child that was asked for its stacks, and has STACK_S to answer; it normally takes milliseconds."""

    def __init__(self, dump: StackDump, process: BaseProcess) -> None:
        self._dump, self._process, self._deadline = dump, process, Deadline(STACK_S)

    @property
    def over(self) -> bool:
        """Whether the child has answered, or had its time to."""
        return bool(self._dump.read()) or self._deadline.passed

    def wait(self) -> str:
        """The stacks, or '', once the time is over or the child has ended."""
        connection.wait([self._process.sentinel], self._deadline.left)
        return self._dump.read().rstrip()


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger has stopped the process."""
    return _status(pid, "State") in ("T", "t")


def is_alive(pid: int) -> bool:
    """Whether the process is there and has not ended, also if nothing has waited for it yet."""
    return _status(pid, "State") not in ("", "Z", "X")


def _catches(pid: int) -> bool:
    """Whether the process has a handler for the signal, as the kernel knows."""
    return bool(int(_status(pid, "SigCgt") or "0", 16) >> (_SIGNAL - 1) & 1)


def _status(pid: int, field: str) -> str:
    """The first word of a field of the kernel's report on a process; "" if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next(line for line in status.splitlines() if line.startswith(f"{field}:")).split()[1]
