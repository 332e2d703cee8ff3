"""Reads names, sessions, threads, CPU time, memory and marks of processes, and the load of cores, from /proc.

It has no command of its own. A mark is a text in the environment of a process, which all that it starts inherit.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
MARK = "SFACTORY_RUN_ID"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# What Python's own helpers of a run are called here, by what stands in their command lines.
_UNNAMED = {"multiprocessing.forkserver": "fork server", "multiprocessing.resource_tracker": "resource tracker"}


class Stat(NamedTuple):
    """A line of /proc/<pid>/stat. cpu_s: user and system time of all its threads."""

    name: str
    session: int
    threads: int
    cpu_s: float


def parse_stat(line: str) -> Stat:
    """Read a line of /proc/<pid>/stat; the name stands in brackets and may hold anything."""
    before, _, after = line.rpartition(")")
    fields = after.split()  # from the third field of proc(5) on: state, ppid, pgrp, session, ...
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return Stat(before.partition("(")[2], int(fields[3]), int(fields[17]), cpu_s)


def stat_of(pid: int, proc: Path = PROC) -> Stat:
    """What the kernel counts of a process; raises OSError if there is none."""
    return parse_stat((proc / str(pid) / "stat").read_text(errors="replace"))


def core_ticks(text: str, cores: Set[int]) -> tuple[int, int]:
    """Busy and all clock ticks of these cores, from the text of /proc/stat."""
    busy = passed = 0
    for line in text.splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            # user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two
            ticks = [int(count) for count in counts[:8]]
            passed += sum(ticks)
            busy += sum(ticks) - ticks[3] - ticks[4]
    return busy, passed


def busy_cores(seconds: float) -> float:
    """How many of the cores that this process may use are busy, on average over the next seconds."""
    cores = os.sched_getaffinity(0)
    before = core_ticks((PROC / "stat").read_text(), cores)
    time.sleep(seconds)
    after = core_ticks((PROC / "stat").read_text(), cores)
    return len(cores) * (after[0] - before[0]) / max(1, after[1] - before[1])


def rollup(text: str) -> dict[str, float]:
    """Megabytes by name, from the text of a smaps_rollup."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0].rstrip(":"): round(int(row[1]) / 1024, 3) for row in rows if len(row) == 3 and row[2] == "kB"}


def marked(mark: str) -> dict[int, str]:
    """Name by pid of all living processes that were started with ``mark`` in their environment."""
    sought = f"{MARK}={mark}".encode()
    found: dict[int, str] = {}
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while it is looked at
            if sought in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = _name(folder)
    return found


def _name(folder: Path) -> str:
    command = (folder / "cmdline").read_bytes().decode(errors="replace")
    name = (folder / "comm").read_text(errors="replace").strip()
    if name.startswith(("sf-", "sfactory-")):
        return name
    return next((known for part, known in _UNNAMED.items() if part in command), name)
