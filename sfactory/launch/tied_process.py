"""Starts a run that does not outlive its launcher.

This file is executed between fork and exec of the run, with nothing but the standard library.

NOTE [Death of the launcher]: the kernel sends SIGTERM to the run when the thread that started it ends, which is the
launcher's main thread; the run then saves and ends. The request survives exec. It does not apply to children made by
fork: the run's main process ends those.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied_command(command: Sequence[str]) -> list[str]:
    """A command that runs ``command`` (absolute path and arguments) while this process is alive."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _main(starter: int, command: Sequence[str]) -> None:
    """Become ``command``; does not return."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed: the run would outlive its launcher")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher may ignore it; a run in a session of its own must not
    if os.getppid() != starter:  # the launcher died before prctl
        os._exit(128 + signal.SIGTERM)
    os.execv(command[0], list(command))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
