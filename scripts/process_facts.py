"""Reads memory, files, threads and CPU time of processes, and the names in shared memory.

All of it is read from /proc. Processes of a run are known by their names: sf-main, sf-learner-0, sf-policy-0-0,
sf-actor-0 and so on.

Three kinds of memory: resident (``rss_mb``) counts in full what a process shares with others, proportional
(``pss_mb``) counts a page that n processes share as an nth, so that it adds up over processes, and private
(``private_mb``) is what would be free if that process alone ended. Megabytes are 2^20 bytes.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scripts.proc import PROC, rollup, stat_of
from sfactory.layout import ACTORS, LEARNERS, POLICY_WORKERS

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Facts:
    """One process at one moment."""

    rss_mb: float
    pss_mb: float
    private_mb: float
    open_files: int
    threads: int
    cpu_s: float


def facts_of(pid: int, proc: Path = PROC) -> Facts | None:
    """What a process takes; None if there is none, or one that has ended and was not waited for."""
    folder = proc / str(pid)
    try:
        memory = rollup((folder / "smaps_rollup").read_text())
        stat = stat_of(pid, proc)
        open_files = len(os.listdir(folder / "fd"))
    except OSError:
        return None
    if "Rss" not in memory:
        return None
    return Facts(
        rss_mb=memory["Rss"],
        pss_mb=memory["Pss"],
        private_mb=round(memory["Private_Clean"] + memory["Private_Dirty"], 3),
        open_files=open_files,
        threads=stat.threads,
        cpu_s=stat.cpu_s,
    )


def facts_by_name(names: Mapping[int, str]) -> dict[str, Facts]:
    """Facts of living processes, whose ``names`` are given by pid; one whose name is taken gets its pid added."""
    found: dict[str, Facts] = {}
    for pid, name in sorted(names.items()):
        facts = facts_of(pid)
        if facts is not None:
            found[f"{name} {pid}" if name in found else name] = facts
    return found


def total(processes: Mapping[str, Facts], field: str) -> float:
    """The sum of a field over processes."""
    return float(sum(getattr(facts, field) for facts in processes.values()))


def median_private_mb(processes: Mapping[str, Facts], prefix: str) -> float | None:
    """The median of the private memory of processes whose names begin with ``prefix``; None if there are none."""
    values = [facts.private_mb for name, facts in processes.items() if name.startswith(prefix)]
    return float(statistics.median(values)) if values else None


def shm_names() -> frozenset[str]:
    """All names in /dev/shm."""
    return frozenset(entry.name for entry in SHM.iterdir())


def shm_left_since(before: frozenset[str]) -> list[str]:
    """Names that came into /dev/shm since ``before`` and that no living process has mapped, so that they stay."""
    new = shm_names() - before
    if not new:
        return []
    mapped: set[str] = set()
    for maps in PROC.glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(errors="replace")
            mapped |= {name for name in new if f"{SHM}/{name}" in text}
    return sorted(new - mapped)


def shm_used_mb() -> float:
    """Megabytes that /dev/shm holds, of all programs together."""
    state = os.statvfs(SHM)
    return round((state.f_blocks - state.f_bfree) * state.f_frsize / 2**20, 3)


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
