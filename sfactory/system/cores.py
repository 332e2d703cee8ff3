"""Finds how many cores and how much memory a run may use, and sets the environment of native libraries.

Both cgroup versions are read. A limit applies to all groups below it, so the own group and its ancestors are checked.
Inside a container, only its own group may be visible; it then appears as the root.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

NATIVE = {
    # One native thread per process; the learner raises its own limit.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # How often an idle thread of a learner looks for work before it sleeps: about 0.3 ms. With GNU OpenMP's default, 30
    # times as long, it keeps actors off the core that they share. See docs/performance.md.
    "GOMP_SPINCOUNT": "10000",
    # Keep the memory of freed tensors in the heap, and give no tensor a mapping of its own. If it went back to the
    # kernel, every minibatch would fault it in again page by page. See docs/performance.md.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    # One heap for all threads: per-thread heaps consist of 64 MiB pieces that are released as soon as they are empty.
    "MALLOC_ARENA_MAX": "1",
    # Huge pages, if kernel and glibc (2.35 or later) support them: one page fault per 2 MiB instead of per 4 KiB.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def set_for_children() -> None:
    """Set NATIVE for children, which read it before they import numpy and torch. Values set by the user win."""
    for variable, value in NATIVE.items():
        os.environ.setdefault(variable, value)


ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """CPU quota of this process in CPUs: the smallest of all limits; None without a limit."""
    v2, v1 = _folders(root, membership, ""), _folders(root, membership, "cpu")
    quotas = [*map(_quota_v2, v2), *map(_quota_v1, v1)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that this process and its children can still allocate under all limits; None without a limit."""
    names_v2 = ("memory.max", "memory.current", "inactive_file")
    names_v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    left = [_memory(folder, *names_v2) for folder in _folders(root, membership, "")]
    left += [_memory(folder, *names_v1) for folder in _folders(root, membership, "memory")]
    return min((number for number in left if number is not None), default=None)


def _folders(root: Path, membership: Path, controller: str) -> list[Path]:
    """The folders of the own group and its ancestors; ``controller`` is '' for cgroup v2."""
    lines: list[list[str]] = []  # id, controllers (none for cgroup v2), path
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    paths = [path for _, controllers, path in lines if controller in controllers.split(",")]
    group = PurePosixPath(paths[0] if paths else "/")
    return [root / controller / path.relative_to("/") for path in (group, *group.parents)]


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else float(quota) / float(period)


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _memory(folder: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    limit, used = _number(folder / limit_name), _number(folder / used_name)
    if limit is None or used is None:
        return None
    # The page cache counts as used, but the kernel frees its inactive part on demand.
    return max(0, limit - max(0, used - (_number(folder / "memory.stat", cache_name) or 0)))


def _number(path: Path, name: str = "") -> int | None:
    """The number in a file, or in its line ``name number``; None if there is none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
        return next(int(words[-1]) for words in lines if words[:-1] == name.split())
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def core_ids() -> tuple[int, ...]:
    """The cores in the affinity mask of this process; all of the machine where there are no such masks."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


RANKS = "SFACTORY_RANKS"  # variable that a rank sets: how many of its machine divide the CPU quota
_MIN_STARTING = 8  # creating an env often waits for a disk or for the start of a simulator


@dataclass(frozen=True)
class Cores:
    """The cores that this process may use, and its CPU quota, or that of a rank."""

    ids: tuple[int, ...]
    quota: float | None
    kept: int = 0  # cores reserved for the learner
    pins: bool = True  # processes can be pinned to cores
    learner_use: int = sys.maxsize  # more math threads than this would not make the learner faster
    learner_alone: bool = False  # actors wait while the learner trains
    learner_least: int = 1  # threads that learners get together in any case

    @staticmethod
    def available() -> Cores:
        """The cores in the affinity mask of this process, and its CPU quota; of a rank, its part of the quota."""
        quota = cpu_quota()
        return Cores(core_ids(), None if quota is None else quota / int(os.environ.get(RANKS, "1")))

    def keeping(self, cores: int) -> Cores:
        """A copy that keeps ``cores`` cores free of actors; must be fewer than ``count``."""
        assert cores < self.count
        return replace(self, kept=cores)

    @property
    def count(self) -> int:
        """Number of usable cores: those in the mask, or fewer if the quota is smaller."""
        if self.quota is None:
            return len(self.ids)
        return max(1, min(len(self.ids), math.ceil(self.quota)))

    def cores_of_actor(self, actor: int, num_actors: int) -> frozenset[int] | None:
        """The cores to pin an actor to, None without pinning: its own core if there are as many actors as cores, or
        else all that are not reserved. With fewer actors, several runs would share the first cores, and an env with
        threads of its own would have one. With a CPU quota own cores are harmful."""
        if not self.pins:
            return None
        cores = self.ids[self.kept :]
        if self.quota is None and num_actors == len(cores):
            return frozenset({cores[actor]})
        return frozenset(cores) if self.kept else None

    def learner_threads(self, num_actors: int, learners: int = 1) -> int:
        """Number of math threads of each of ``learners``: a share of the cores without a working actor, at least of
        ``kept`` and ``learner_least``. There are not more than it has use for.
        """
        free = self.count if self.learner_alone else self.count - num_actors
        return min(self.learner_use, max(1, max(self.kept, self.learner_least, free) // learners))

    def actors_starting(self, wanted: int) -> int:
        """How many actors may create and reset envs at the same time: ``wanted``, or if 0, a number from the cores."""
        return wanted or max(_MIN_STARTING, 2 * self.count)
