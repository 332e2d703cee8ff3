"""Room: a run that does not outlive its launcher. In: the launcher's pid, a command. Out: the command, in this process.

Executed as a file, with nothing but the standard library, between the fork and the command.

NOTE [Death of the launcher]: the kernel sends SIGTERM to the command when the thread that has started it ends, which is
the launcher's main thread; a run that gets it saves and ends. The request outlives exec. Children
made by fork do not have it: those of the run are its main's to end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied_command(command: Sequence[str]) -> list[str]:
    """The command that runs ``command`` (an absolute path, and arguments) for as long as this process lives."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _main(starter: int, command: Sequence[str]) -> None:
    """Become ``command``; does not return."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed: the run would outlive a launcher that dies")
    if os.getppid() != starter:  # it died before the kernel was asked
        os._exit(128 + signal.SIGTERM)
    os.execv(command[0], list(command))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
