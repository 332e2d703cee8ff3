"""Finds what is left of a run in /proc and /dev/shm: processes by a mark in their environment, names, open files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.warm_process import MARK

SHM = Path("/dev/shm")


def eventually(predicate: Callable[[], bool], within_s: float, every_s: float = 0.05) -> bool:
    """Whether ``predicate`` comes true within the bound; looks at least twice."""
    end = time.monotonic() + within_s
    while not predicate():
        if time.monotonic() > end:
            return predicate()
        time.sleep(every_s)
    return True


def processes_of(run_id: str) -> dict[int, str]:
    """Name (comm) by process id of every living process that was started with that run id. Zombies do not count."""
    mark = f"{MARK}={run_id}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "comm").read_text().strip()
    return found


def shm_names() -> frozenset[str]:
    """All names in /dev/shm."""
    return frozenset(entry.name for entry in SHM.iterdir())


def shm_left_since(before: frozenset[str]) -> frozenset[str]:
    """Names that came into /dev/shm since ``before`` and that no living process has mapped."""
    new = shm_names() - before
    return new - _mapped(new) if new else new


def _mapped(names: frozenset[str]) -> frozenset[str]:
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(errors="replace")
            mapped.update(name for name in names if f"{SHM}/{name}" in text)
    return frozenset(mapped)


def handles() -> dict[int, str]:
    """What each open file of this process leads to, by its number."""
    found: dict[int, str] = {}
    for link in Path("/proc/self/fd").iterdir():
        # The one that the folder itself is read by is closed by now.
        with contextlib.suppress(OSError):
            found[int(link.name)] = str(link.readlink())
    return found


def catches_signal(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for that signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def maps_library(pid: int, part_of_name: str) -> bool:
    """Whether the process has loaded a file of which the path contains that text."""
    return part_of_name in Path(f"/proc/{pid}/maps").read_text(errors="replace")


def is_stopped(pid: int) -> bool:
    """Whether the process lives, and all its threads are stopped: some may be sooner than others."""
    lines = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(lines) and all(line.rpartition(")")[2].split()[0] == "T" for line in lines)
