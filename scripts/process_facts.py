"""Room: what processes take. In: pids. Out: memory, files, threads and CPU time of each; what is left in shared memory.

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.proc import PROC, rollup, stat_of

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


def median_of(processes: Mapping[str, Facts], prefix: str, field: str) -> float | None:
    """The median of a field over processes whose names begin with ``prefix``; None if there are none."""
    values = [getattr(facts, field) for name, facts in processes.items() if name.startswith(prefix)]
    return float(statistics.median(values)) if values else None


def shm_names() -> frozenset[str]:
    """All names in /dev/shm."""
    return frozenset(entry.name for entry in SHM.iterdir())


def shm_left_since(before: frozenset[str]) -> list[str]:
    """Names that came into /dev/shm since ``before`` and that no living process has mapped: nobody will remove them."""
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
    """What /dev/shm holds, whoever has put it there."""
    state = os.statvfs(SHM)
    return round((state.f_blocks - state.f_bfree) * state.f_frsize / 2**20, 3)
