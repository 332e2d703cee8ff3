"""Ends the processes that envs have started once the process that they belong to has ended.

NOTE [Processes of envs]: an env may start programs, fork, or use a pool of processes, and close() may not end them, or
may never be called. Process groups would not find those with a session of their own, and Ctrl-Z would no longer reach
a child of ours. So the kernel's rule for orphans is used: each child of ours adopts the orphans among its descendants
(PR_SET_CHILD_SUBREAPER), so that all that an env starts stays below its actor; and when the actor ends, it becomes a
child of the watcher (sfactory/process/watcher.py), the parent of the fork server. Every other child of the watcher has
therefore outlived its actor. It is sent SIGTERM, and SIGKILL if that does not help within TERM_S. The same holds for
the probe and evaluators. An adopted process that ends before its actor stays as a zombie until then.

A program that is ended so may leave named shared memory, which only its env would have removed: ViZDoom's is 11 MB an
env. Such files are removed if they are new in this run and no process maps them any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Set
from multiprocessing import util
from pathlib import Path

from sfactory.clock import Deadline
from sfactory.system.operating_system import LINUX

_log = logging.getLogger(__name__)

TERM_S = 1.0  # seconds from SIGTERM to SIGKILL
END_S = 10.0  # a process that does not end within it, though it was sent SIGKILL, is left to the kernel
_POOLS_S = 5.0
_SHM = "/dev/shm/"
OFTEN_S = 0.02  # between two looks while there are orphans
_PASSES = 10  # at most, over threads that may come and go all the time

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FINALIZERS: dict[tuple[int | None, int], Callable[[], object]] = util._finalizer_registry  # type: ignore[attr-defined]
_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None


def adopt_orphans(yes: bool = True) -> None:
    """Whether orphans among the descendants of this process become its children."""
    prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, which only Linux has; raises OSError."""
    if _LIBC is not None and _LIBC.prctl(option, *(ctypes.c_ulong(argument) for argument in (value, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed: processes could outlive the run")


def children_of(pid: int) -> set[int]:
    """Process ids of the children of a process, those that have ended and were not waited for included.

    The kernel lists children by thread. Those of a thread that ends become another one's, which may have been read by
    then, while it is still listed itself: so all are read twice, and again as long as threads have ended meanwhile. Of
    a process that is being killed some may be missing.
    """
    found: set[int] = set()
    threads: list[str] = []
    with contextlib.suppress(OSError):  # it has ended
        for _ in range(_PASSES):
            before, threads = threads, os.listdir(f"/proc/{pid}/task")
            for thread in threads:
                with contextlib.suppress(OSError):  # the thread has
                    found.update(map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()))
            if threads == before:
                break
    return found


def _mapped(pid: str | int) -> set[str]:
    """Names of the files right in /dev/shm that a process maps; none if this user may not know."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    paths = [line.split(maxsplit=5)[-1] for line in lines]
    names = {path.removeprefix(_SHM) for path in paths if path.startswith(_SHM)}
    return {name for name in names if "/" not in name}


class NamedMemory:
    """Files in /dev/shm that ended processes have left. Those that are there now are never touched."""

    def __init__(self) -> None:
        self._before = _names()
        self._seen: set[str] = set()

    def look(self, pids: Collection[int]) -> None:
        """Remember what processes map that are about to end."""
        for pid in pids:
            self._seen |= _mapped(pid) - self._before

    def remove(self) -> None:
        """Remove what was seen, is still there, and is mapped by no process; what one maps is looked at next time."""
        if self._seen:
            self._seen &= _names()
        if self._seen:
            used = set[str]().union(*map(_mapped, filter(str.isdigit, os.listdir("/proc"))))
            for name in self._seen - used:
                with contextlib.suppress(OSError):
                    os.unlink(_SHM + name)
            self._seen &= used


def _names() -> set[str]:
    with contextlib.suppress(OSError):
        return set(os.listdir(_SHM))
    return set()


class Orphans:
    """The children of this process other than ``kept``, which are to end.

    new: those that the last look has found. asked: all that are to end and have not yet.
    """

    def __init__(self, kept: Collection[int] = (), memory: NamedMemory | None = None) -> None:
        self._kept, self.asked, self._grace = frozenset(kept), frozenset[int](), Deadline(0)
        self._memory = memory or NamedMemory()
        self.new: frozenset[int] = frozenset()

    def keep(self, pids: Set[int]) -> None:
        """``pids`` are not to end either."""
        self._kept |= pids

    def look(self, at_once: bool = False) -> bool:
        """Ask new ones to end; kill all if there were some for TERM_S, or ``at_once``; returns whether any is left."""
        left = frozenset(pid for pid in children_of(os.getpid()) - self._kept if not has_ended(pid))
        if not self.asked:
            self._grace = Deadline(TERM_S)
        self.new = left - self.asked
        self._memory.look(self.new)
        kill = at_once or self._grace.passed
        for pid in left if kill else self.new:
            send(pid, signal.SIGKILL if kill else signal.SIGTERM)
        self.asked = left
        if not left:
            self._memory.remove()
        return bool(left)

    def message(self) -> str:
        """Names the new ones, for the log."""
        named = ", ".join(f"{name_of(pid)} (process {pid})" for pid in sorted(self.new))
        return f"left behind by an env, and ended: {named}"


class Started:
    """What envs start in this process. Between ``pause`` and ``resume`` others start processes, which do not end."""

    blocks = 0  # of ``new_children_end`` that this process is in

    def __init__(self) -> None:
        self.orphans, self.finalizers = Orphans(kept=children_of(os.getpid())), set(_FINALIZERS)
        self._paused: tuple[set[int], set[tuple[int | None, int]]] | None = None  # what there was

    def pause(self) -> None:
        """From now on it is not envs that start processes."""
        self._paused = children_of(os.getpid()), set(_FINALIZERS)

    def resume(self) -> None:
        """From now on it is envs again. Without a pause it does nothing."""
        if self._paused is not None:
            children, finalizers = self._paused
            self.orphans.keep(children_of(os.getpid()) - children)
            self.finalizers |= set(_FINALIZERS) - finalizers
            self._paused = None


@contextlib.contextmanager
def new_children_end() -> Iterator[Started]:
    """End, after the block, all children that this process has got inside, the orphans among their descendants too."""
    started = Started()
    orphans = started.orphans
    Started.blocks += 1
    adopt_orphans()
    try:
        yield started
    finally:
        started.resume()
        bound = Deadline(END_S)
        try:
            ending = threading.Thread(target=_end_pools, args=(started.finalizers,), name="pools-end", daemon=True)
            ending.start()
            ending.join(_POOLS_S)
            while orphans.look() and not bound.passed:
                if orphans.new:
                    _log.warning("%s", orphans.message())
                time.sleep(OFTEN_S)
        finally:
            orphans.look(at_once=True)  # after a second signal
            Started.blocks -= 1
            adopt_orphans(Started.blocks > 0)


def _end_pools(before: Set[tuple[int | None, int]]) -> None:
    """End the pools and managers of multiprocessing made since ``before``, as Python does at its exit.

    Otherwise a pool replaces the workers that are ended, and waits for ever at the exit for a lock that one of them
    held. So does this if workers were killed before.
    """
    since = [key for key in _FINALIZERS if key not in before and key[0] is not None and key[0] >= 0]
    for key in sorted(since, reverse=True):
        with contextlib.suppress(Exception):
            _FINALIZERS[key]()


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended; it is waited for then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def send(pid: int, signum: int) -> None:
    """Send a signal to a process, if it is there and this user may."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def name_of(pid: int) -> str:
    """The name of a process, as ``ps`` shows it. The kernel cuts names after 15 bytes, also within a letter."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"
