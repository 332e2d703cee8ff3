"""Room: how much memory processes take. In: their pids. Out: megabytes (2^20 bytes) that each has to itself.

A process's resident size holds what it shares with others, too: shared memory (trajectories, weights) and
mapped files (the code of libraries). Only what is left adds up. The kernel's /proc/<pid>/statm tells both, in
pages; pages that a fork left in common count for each process, as nothing cheap to read tells them apart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_PAGES_PER_MB = 2**20 / os.sysconf("SC_PAGE_SIZE")


def private_mb(pid: int) -> float | None:
    """Resident memory of a process without shared memory and files; None if there is no such process."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_bytes().split())
    except (OSError, ValueError):
        return None
    # A process that has ended and was not waited for yet has no memory.
    return max(0, resident - shared) / _PAGES_PER_MB if resident else None


def memory_scalars(pids: Mapping[str, int]) -> dict[str, float]:
    """``memory/<name>_mb`` of each named process that is there, and ``memory/total_mb``, their sum.

    A pid of 0 is a process that was not started; names that share a pid are told and counted as the first.
    """
    scalars: dict[str, float] = {}
    seen = {0}
    for name, pid in pids.items():
        if pid not in seen:
            seen.add(pid)
            megabytes = private_mb(pid)
            if megabytes is not None:
                scalars[f"memory/{name}_mb"] = megabytes
    return scalars | {"memory/total_mb": sum(scalars.values())}
