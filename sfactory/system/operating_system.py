"""What operating systems differ in: Linux has all that sfactory uses, macOS and Windows what serial mode needs.

The processes of a run need memfd, eventfd, prctl, /proc and faster-fifo, which are Linux's. In serial mode there is one
process, and what it would share is its own memory. Where Windows lacks a call that only guards against other programs
or against a power cut, that guard is missing there: docs/platforms.md lists them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LINUX = sys.platform == "linux"
NAME = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
# A file that is open can be renamed, and a directory can be opened to bring it to the disk.
POSIX = sys.platform != "win32"

_LOCKED_BYTE = 1 << 30  # beyond the end of every file that is locked: a byte that Windows locks cannot be read


def open_flags(*names: str) -> int:
    """Flags of ``os.open``, without those that this system lacks. Windows would translate ends of lines."""
    flags = getattr(os, "O_BINARY", 0)
    for name in names:
        flags |= getattr(os, name, 0)
    return int(flags)


def lock(fd: int) -> None:
    """Lock an open file until ``close_lock``, or until this process ends.

    Raises BlockingIOError if another process has locked it, and OSError.
    """
    if sys.platform == "win32":
        at = os.lseek(fd, 0, os.SEEK_CUR)
        try:
            os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(errno.EAGAIN, "another process has locked it") from error
        finally:
            os.lseek(fd, at, os.SEEK_SET)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def close_lock(fd: int) -> None:
    """Close a file that was locked. Closing alone would leave the lock to a process that was forked meanwhile."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # a network file system that fails
            fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def signal_number(name: str) -> int:
    """The number of a signal; 0, which is none, if this system lacks it."""
    return int(getattr(signal, name, 0))


def signal_name(number: int) -> str:
    """SIGKILL and the like; the number of a signal without a name."""
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")
