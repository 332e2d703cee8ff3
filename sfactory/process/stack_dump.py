"""Room: where in its code a child hangs. In: a signal from main. Out: the child's Python stacks, read by main.

The stacks are written by a handler in C, so that they come even from a child in which C code holds the interpreter's
lock, and into a nameless file that main has opened: the child needs no lock, no thread and no pipe that could be full.
A child that has no handler yet would be killed by the signal, and so is not asked.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import weakref
from multiprocessing import reduction
from multiprocessing.context import assert_spawning
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_SIGNAL = signal.SIGUSR2
_MAX_BYTES = 65_536


class StackFile:
    """Takes the stacks of one child. Travels to it while it is started, as SharedArrays do."""

    def __init__(self) -> None:
        self._hold(os.memfd_create("sfactory-stack", os.MFD_CLOEXEC))

    def _hold(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)

    def answer(self) -> None:
        """In the child: write the stacks of all threads here whenever main asks."""
        faulthandler.register(_SIGNAL, file=self._fd, all_threads=True, chain=False)

    def ask(self, process: BaseProcess) -> None:
        """In main: have the child write; it takes a moment, or for ever if the child is stopped or too young."""
        assert process.pid is not None, "it was started"
        if not _catches(process.pid):
            return
        os.lseek(self._fd, 0, os.SEEK_SET)  # the child's descriptor shares the position: an earlier answer goes
        os.ftruncate(self._fd, 0)
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(process.pid, _SIGNAL)

    def read(self) -> str:
        """In main: what the child has written so far, or ''."""
        return os.pread(self._fd, _MAX_BYTES, 0).decode(errors="replace")

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)  # see SharedArrays
        return (_attach, (reduction.DupFd(self._fd),))


def _catches(pid: int) -> bool:
    """Whether the process has a handler for the signal, as the kernel knows."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (_SIGNAL - 1) & 1)


def _attach(handle: Any) -> StackFile:
    file = StackFile.__new__(StackFile)
    file._hold(handle.detach())
    return file
