"""Makes this process look like another system to what it imports next: ``python FILE darwin|win32|linux ARGV``.

Modules, functions, signals and files that the system lacks are hidden, and then the command ``sfactory`` is run. All
libraries are imported first: what they do on other systems is not tried. With ``-`` in place of ARGV, Python code is
read from stdin and run.
"""

from __future__ import annotations

import asyncio  # noqa: F401  # it chooses its event loop when it is imported, as others here choose theirs
import builtins
import concurrent.futures.thread  # noqa: F401
import ctypes
import ctypes.util
import errno
import faulthandler
import importlib
import io
import multiprocessing.forkserver
import multiprocessing.resource_tracker  # noqa: F401
import os
import select
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

_LIBRARIES = "torch numpy gymnasium.envs.classic_control tensorboardX yaml threadpoolctl imageio_ffmpeg pygame"
# Only Linux has these: modules, functions of os, signals, and the folders whose files are hidden.
_LINUX = {
    "modules": "faster_fifo",
    "os": "memfd_create eventfd eventfd_read eventfd_write pidfd_open pipe2 sched_getaffinity sched_setaffinity",
    "signal": "SIGRTMIN SIGRTMAX pidfd_send_signal",
}
_FOLDERS = ("/proc/", "/sys/", "/dev/shm")
# Windows lacks these, too.
_UNIX = {
    "modules": "fcntl resource termios tty pty pwd grp",
    "os": "O_NONBLOCK O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_NOCTTY WNOHANG chown fork getpgrp getuid killpg mkfifo nice "
    "pread pwrite register_at_fork sched_yield set_blocking setsid statvfs sysconf tcgetpgrp uname",
    "signal": "SIGUSR1 SIGUSR2 SIGHUP SIGXCPU SIGKILL SIGCHLD SIGALRM pthread_sigmask siginterrupt setitimer "
    "SIG_BLOCK SIG_UNBLOCK SIG_SETMASK",
    "select": "poll PIPE_BUF",
    "faulthandler": "register",
}


def become(system: str) -> None:
    """Hide what ``system`` lacks."""
    for name in _LIBRARIES.split():
        importlib.import_module(name)
    if system == "linux":
        return
    for names in (_LINUX, _UNIX) if system == "win32" else (_LINUX,):
        for module in names["modules"].split():
            sys.modules[module] = None  # type: ignore[assignment]  # importing it raises ImportError
        for place in (os, signal, select, faulthandler):
            for name in names.get(place.__name__, "").split():
                delattr(place, name)
    if system == "win32":
        _add_windows()
    for place, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "listdir")):
        setattr(place, name, _without_folders(getattr(place, name)))
    sys.platform = system


def _without_folders(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(path: Any = ".", *arguments: Any, **keywords: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(_FOLDERS):
            raise FileNotFoundError(errno.ENOENT, "this system has no such file", os.fsdecode(path))
        return call(path, *arguments, **keywords)

    return checked


def _add_windows() -> None:
    """Windows' locks, its C library, and its rule that an open file is neither renamed nor removed.

    Python's code for Windows that starts programs is not here, so there are none.
    """
    locks = types.ModuleType("msvcrt")
    vars(locks).update(LK_NBLCK=2, locking=lambda fd, mode, nbytes: None)
    sys.modules["msvcrt"] = locks
    load, replace, unlink = ctypes.CDLL, os.replace, os.unlink

    def library(name: str | None, *arguments: Any, **keywords: Any) -> ctypes.CDLL:
        if name is None:
            raise TypeError("this system has no such library")
        return load(None if name == "ucrtbase" else name, *arguments, **keywords)

    def require_closed(path: Any) -> None:
        files = {os.path.realpath(f"/dev/fd/{fd}") for fd in range(3, 256) if os.path.exists(f"/dev/fd/{fd}")}
        if os.path.realpath(path) in files:
            raise PermissionError(errno.EACCES, "the file is open", str(path))

    def renamed(source: Any, target: Any) -> None:
        require_closed(source)
        replace(source, target)

    def removed(path: Any) -> None:
        require_closed(path)
        unlink(path)

    def started(command: Any, *arguments: Any, **keywords: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "there is no such program", str(command))

    ctypes.CDLL, os.replace, os.unlink = library, renamed, removed  # type: ignore[misc, assignment]
    subprocess.Popen = started  # type: ignore[misc, assignment]


if __name__ == "__main__":
    become(sys.argv[1])
    if sys.argv[2:] == ["-"]:
        exec(compile(sys.stdin.read(), "stdin", "exec"), {"__name__": "__main__"})
    else:
        from sfactory.__main__ import main

        sys.exit(main(sys.argv[2:]))
