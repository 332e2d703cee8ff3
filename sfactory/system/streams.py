"""Writes to stdout and stderr for a bounded time: a terminal may be stopped, and a pipe may not be read.

A write waits WRITE_S at most. What is not taken by then is lost, and so is what follows, until the reader continues.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import sys
from typing import Any, BinaryIO, TextIO, cast

from sfactory.clock import Deadline
from sfactory.errors import CannotSaveError
from sfactory.system.operating_system import LINUX

WRITE_S = 2.0
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_standard_streams() -> None:
    """Open what the shell has closed (2>&-): what is printed would go to a file or pipe of the run instead.

    Afterwards writes of Python's to stdout and stderr are bounded. A stream that a program has replaced stays as it is.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # has the lowest free number, which is this one
        if getattr(sys, name) is None:
            stream = open(number, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if not hasattr(select, "poll"):  # Windows: writes are not bounded there
        return
    if sys.stdout is sys.__stdout__:
        sys.stdout = _bounded(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _bounded(sys.stderr, 2)


def _bounded(stream: object, number: int) -> TextIO:
    assert isinstance(stream, io.TextIOWrapper), "it is Python's own"
    stream.flush()
    raw = _Bounded(number)
    return io.TextIOWrapper(
        cast(BinaryIO, raw) if stream.write_through else io.BufferedWriter(raw),  # PYTHONUNBUFFERED
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def unblocked(number: int) -> int:
    """A new descriptor for what descriptor ``number`` leads to, which does not block if that is a pipe or terminal.

    It is opened again for that, as the flag of the old descriptor would hold for other programs, too. A file does not
    block, and would be overwritten. Only Linux opens it again; elsewhere writes may block.
    """
    mode = os.fstat(number).st_mode
    if LINUX and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        with contextlib.suppress(OSError):  # a pipe without a reader, a terminal of another user, no /proc
            return os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(number)


def say_at_once(text: str, number: int = 2) -> None:
    """Write to a descriptor out of the handler of a signal: past Python's buffer, and without waiting for a reader."""
    with contextlib.suppress(OSError):
        fd = unblocked(number)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


class _Bounded(io.RawIOBase):
    """Writes to a descriptor of this process. A reader that has gone is no error, and nor is a full disk on stderr.

    Raises CannotSaveError, once, if stdout is a file on a full disk, which takes no result.
    """

    def __init__(self, number: int) -> None:
        self._number, self._stuck = number, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        content = memoryview(data).cast("B")
        within = Deadline(0.0 if self._stuck else WRITE_S)
        before, self._stuck = self._stuck, True
        with contextlib.suppress(OSError):
            fd = unblocked(self._number)  # each time: foreign code may close files, or change what the number leads to
            try:
                self._stuck = _written(fd, content, within) < len(content)
            except OSError as error:
                if self._number == 1 and error.errno in _FULL_DISK and not before:
                    raise CannotSaveError(f"the result cannot be written to stdout: {error.strerror}") from error
            finally:
                os.close(fd)
        return len(content)


def _written(fd: int, content: memoryview, within: Deadline) -> int:
    """Write; returns how many bytes were taken in time. Raises OSError."""
    ready, done = select.poll(), 0
    ready.register(fd, select.POLLOUT)
    while done < len(content) and ready.poll(1000 * within.left):
        try:
            done += os.write(fd, content[done : done + select.PIPE_BUF])
        except BlockingIOError:  # another process was faster
            if within.passed:
                break
    return done
