"""Room: stdout while others' code runs. In: what that prints. Out: the same on stderr; stdout is for results."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator

_LIBC = ctypes.CDLL(None)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What Python, C and child processes print to stdout inside goes to stderr; afterwards stdout is as it was.

    C's stdio keeps what it is to print to a pipe or a file until its buffer is full, at the latest to the end of the
    process, where it would come after the result. So buffers are emptied before file descriptor 1 changes its meaning.
    """
    _flush()
    restore = _divert()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        try:
            _flush()
        finally:
            restore()


def _divert() -> Callable[[], None]:
    """Make file descriptor 1 another name of 2; returns what undoes that."""
    if sys.__stdout__ is None:  # Python was started without a stdout: the number 1 is some other file's, or nobody's
        return lambda: None
    try:
        kept = os.dup(1)
    except OSError:  # it was closed on the way
        os.dup2(2, 1)
        return lambda: os.close(1)
    os.dup2(2, 1)

    def restore() -> None:
        os.dup2(kept, 1)
        os.close(kept)

    return restore


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        # Foreign code may have closed or detached it, and a full disk is told of where the result is printed.
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    _LIBC.fflush(None)
