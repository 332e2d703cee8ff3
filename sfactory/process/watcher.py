"""The parent of the fork server: it ends what outlives its actor or the run. See NOTE [Processes of envs].

NOTE [End of main]: at the end of main, however abrupt, the kernel wakes the watcher (PR_SET_PDEATHSIG). It kills the
server, whose children become its own, and ends what comes to it: a second tie beside NOTE [Death of main], since an env
may close the pipe. The server ends with the watcher by the same request, which is bound to the thread that forks: the
watcher has but one. Then the watcher removes the folder of the server's socket. It holds no pipe, which a process that
an env has forked could keep open.

If the server ends before main, the watcher leaves the server's children to main, which has the learners save. It may
take orphans for such children; all that is left ends when main sends END, before it starts another server.

In serial mode envs live in main. It ends their processes itself, and the watcher remembers them in case that main is
killed; it misses those that main had started in the last REMEMBER_S.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import stat
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from sfactory.clock import Deadline
from sfactory.errors import ExitCode
from sfactory.process.orphans import (
    END_S,
    OFTEN_S,
    PR_SET_PDEATHSIG,
    NamedMemory,
    Orphans,
    adopt_orphans,
    children_of,
    has_ended,
    prctl,
    send,
)
from sfactory.process.signals import set_process_name
from sfactory.system.operating_system import signal_number
from sfactory.system.streams import open_standard_streams

LOOK = signal_number("SIGUSR1")  # sent by main: a child has ended
# Sent by main: envs live in it from now on, or no more.
ENVS_IN_MAIN, NO_ENVS_IN_MAIN = signal_number("SIGUSR2"), signal_number("SIGALRM")
_FIRST = signal_number("SIGRTMIN")
VIEW_OPEN, VIEW_CLOSED = _FIRST, _FIRST + 1  # sent by main: see NOTE [Rows of the view]
END = _FIRST + 2  # sent by main, once the server has ended: end all that is left
_AWAITED = {LOOK, ENVS_IN_MAIN, NO_ENVS_IN_MAIN, VIEW_OPEN, VIEW_CLOSED, END, signal.SIGTERM, signal_number("SIGCHLD")}
MAIN, SOCKET_DIR = "SFACTORY_MAIN", "SFACTORY_SOCKET_DIR"  # variables that main sets: its pid, a folder to remove
REMEMBER_S = 0.25
_SELDOM_S = 60.0  # signals end the wait


def split() -> None:
    """Split the process that main starts as its fork server into watcher and server; returns in the server."""
    main, folder = os.environ.pop(MAIN, None), os.environ.pop(SOCKET_DIR, None)
    if main is None:  # it was not started by a Spawner
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))  # also when a thread ends of which the next one becomes the parent
    adopt_orphans()
    watcher, server = os.getpid(), os.fork()
    if server == 0:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != watcher:  # it ended before the kernel was asked
            os._exit(int(ExitCode.FAULTS))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.excepthook = show_unless_interrupted
        return
    try:
        os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))  # the server's socket among them
        open_standard_streams()
        set_process_name("sfactory-watch")
        _watch(int(main), server)
        if folder is not None and os.getppid() != int(main):  # otherwise main may start another server
            remove_sockets(folder)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(int(ExitCode.DONE))


def show_unless_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception, as Python does, but not that of a child for which main, interrupted, has sent no work."""
    last = trace
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else last.tb_frame.f_globals.get("__name__")
    if not (issubclass(kind, EOFError | pickle.UnpicklingError) and where == "multiprocessing.spawn"):
        sys.__excepthook__(kind, error, trace)


def remove_sockets(folder: str) -> None:
    """Remove a folder that holds sockets alone; with anything else in it, it stays."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                os.unlink(entry.path)
        os.rmdir(folder)


def _watch(main: int, server: int) -> None:
    """End orphans until main has ended, or the server and its children have, and then all that is left."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        _say("this kernel does not list children (CONFIG_PROC_CHILDREN): what envs leave behind is not ended")
    memory = NamedMemory()
    kept, of_main = {server}, StartedByMain(main, memory)
    orphans = Orphans(kept, memory)
    bound: Deadline | None = None
    view_open = False
    while True:
        served = server in kept
        kept = {pid for pid in kept if not has_ended(pid)}
        if served and server not in kept and bound is None:  # its children have become those of the watcher
            kept = children_of(os.getpid()) - orphans.asked
            orphans = Orphans(kept, memory)
        left = orphans.look()
        if bound is not None:
            if not (left or kept) or bound.passed:
                return
        elif os.getppid() != main or not (kept or of_main.on):
            for pid in kept:
                send(pid, signal.SIGKILL)
            if os.getppid() != main:
                of_main.kill()
                while came := signal.sigtimedwait({VIEW_OPEN, VIEW_CLOSED}, 0):
                    view_open = came.si_signo == VIEW_OPEN
                if view_open:
                    print("\x1b7\x1b[r\x1b8", end="", file=sys.stderr, flush=True)
            orphans, bound = Orphans(memory=memory), Deadline(END_S)
            continue
        elif orphans.new:
            _say(orphans.message())
        pause_s = OFTEN_S if left else REMEMBER_S if of_main.on else _SELDOM_S
        came = signal.sigtimedwait(_AWAITED, pause_s)
        if came is not None and came.si_pid == main:
            if came.si_signo in (ENVS_IN_MAIN, NO_ENVS_IN_MAIN):
                of_main.on = came.si_signo == ENVS_IN_MAIN
            elif came.si_signo in (VIEW_OPEN, VIEW_CLOSED):
                view_open = came.si_signo == VIEW_OPEN
            elif came.si_signo == END:
                kept = set()
        of_main.look()


class StartedByMain:
    """The processes that main has started since the watcher began, as long as envs live in main."""

    def __init__(self, main: int, memory: NamedMemory) -> None:
        self.on = False
        self._memory = memory
        self._main, self._before = main, children_of(main)
        self._found: dict[int, str] = {}  # when each was started, by pid

    def look(self) -> None:
        """Remember what is there, if it is on."""
        if not self.on:
            self._found = {}
        elif os.getppid() == self._main:
            roots = children_of(self._main) - self._before
            # What was found stays while it lives: a main that is being killed may list none, see ``children_of``.
            self._found = self._living() | {pid: _started(pid) for root in roots for pid in _tree(root)}

    def kill(self) -> None:
        """Kill those that were found, and what they have started since."""
        for pid in self._living() if self.on else ():
            tree = _tree(pid)
            self._memory.look(tree)
            for one in tree:
                send(one, signal.SIGKILL)

    def _living(self) -> dict[int, str]:
        """Those that were found and live: no other process has the number of one now."""
        return {pid: started for pid, started in self._found.items() if started and _started(pid) == started}


def _tree(pid: int) -> set[int]:
    return {pid}.union(*map(_tree, children_of(pid)))


def _started(pid: int) -> str:
    """When a process was started, in ticks of the kernel; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)
