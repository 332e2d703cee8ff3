"""CPU time of a run's processes by kind, as the kernel counts it (/proc/<pid>/stat), looked at while the run measures.

It has no command of its own; bench.py looks a few times a second and asks for the window in which was measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scripts.proc import PROC, stat_of
from sfactory.layout import ACTORS, LEARNERS, POLICY_WORKERS

# What the names of processes begin with, by kind.
_KINDS = {
    "actors": ACTORS,
    "policy_workers": POLICY_WORKERS,
    "learner": LEARNERS,
    "main": "sf-main",
    "simulation": "sf-sim-",
}
# The end of the measurement is known to a few tenths of a second; its beginning is left out for that.
_SHARE = 0.9


class Snapshot(NamedTuple):
    """CPU seconds of every process named sf-*, by pid and name, at one moment."""

    at: float
    cpu_s: Mapping[tuple[int, str], float]


def kind_of(name: str) -> str | None:
    """What kind of process is called ``name``; None for probes and others that do not count."""
    return next((kind for kind, prefix in _KINDS.items() if name.startswith(prefix)), None)


class ProcessTimes:
    """Looks at the processes of one session."""

    def __init__(self) -> None:
        self._strangers: set[int] = set()  # reading the stat of each process of the machine would cost too much
        self.snapshots: list[Snapshot] = []

    def look(self, session: int) -> None:
        """Take a snapshot."""
        pids = {int(entry) for entry in os.listdir(PROC) if entry.isdigit()} - self._strangers
        seen: dict[tuple[int, str], float] = {}
        at = time.monotonic()
        for pid in pids:
            try:
                stat = stat_of(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if stat.session != session:
                self._strangers.add(pid)
            elif kind_of(stat.name) is not None:
                seen[pid, stat.name] = stat.cpu_s
        self.snapshots.append(Snapshot(at, seen))


def cores_busy(snapshots: Sequence[Snapshot], seconds: float) -> dict[str, float]:
    """CPU seconds per second by kind within a measurement of ``seconds``, which ended as its processes did."""
    most = max((len(snapshot.cpu_s) for snapshot in snapshots), default=0)
    whole = [snapshot for snapshot in snapshots if len(snapshot.cpu_s) == most]
    if not most or len(whole) < 2:
        raise SystemExit("error: the processes of a measurement could not be watched: it was too short")
    end = whole[-1]
    within = [snapshot for snapshot in whole[:-1] if snapshot.at >= end.at - _SHARE * seconds]
    begin = within[0] if within else whole[-2]
    busy: dict[str, float] = {}
    for process, cpu_s in end.cpu_s.items():
        kind = kind_of(process[1])
        if kind is not None:
            used = (cpu_s - begin.cpu_s.get(process, cpu_s)) / (end.at - begin.at)
            busy[kind] = busy.get(kind, 0.0) + used
    return {kind: busy[kind] for kind in _KINDS if kind in busy}


def cpu_us_per_step(busy: Mapping[str, float], steps_per_second: float) -> dict[str, float]:
    """CPU microseconds by kind that one env step takes."""
    return {kind: round(1e6 * share / steps_per_second, 4) for kind, share in busy.items()}
