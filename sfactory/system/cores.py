"""Room: settings of native libraries, read when a process begins. In: a process. Out: the same for its children.

Benchmarks of a part of the work give them to the processes that they start, too.

Room: limits of the container. In: the kernel's files about control groups. Out: numbers, or None without a limit.

Both versions of control groups are read. A limit holds for everything below it, so a group's own and those of its
ancestors are looked at. Inside a container its own group may be all there is to see, and then is the root.

Room: how much CPU this run may use. In: affinity mask and cgroup quota. Out: cores and thread budgets.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

NATIVE = {
    # One native thread per process; the learner raises its own number.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Memory of freed tensors stays in the heap (the highest threshold glibc takes): given back to the kernel, it
    # would be faulted in again, page by page, with every minibatch. See docs/performance.md.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    # One heap for all threads: that of a thread lies in pieces of 64 MiB, each given back as soon as it is empty.
    "MALLOC_ARENA_MAX": "1",
    # In huge pages where the kernel and glibc (2.35 or later) know them: one fault for 2 MiB instead of one for 4 KiB.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def set_for_children() -> None:
    """Children find them in their environment, before numpy and torch are imported. A user's own values win."""
    for variable, value in NATIVE.items():
        os.environ.setdefault(variable, value)


ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

N = TypeVar("N", int, float)


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """CPUs' worth of time this process may use: the least of all limits."""
    return _least(_readings(root, membership, "cpu", _quota_v2, _quota_v1))


def memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that this process and its children can still allocate: the least that any limit leaves."""
    return _least(_readings(root, membership, "memory", _memory_v2, _memory_v1))


def _readings(
    root: Path,
    membership: Path,
    controller: str,
    v2: Callable[[Path], N | None],
    v1: Callable[[Path], N | None],
) -> Iterator[N | None]:
    yield from (v2(folder) for folder in _folders(root, _own_group(membership, "")))
    yield from (v1(folder) for folder in _folders(root / controller, _own_group(membership, controller)))


def _folders(base: Path, group: PurePosixPath) -> Iterator[Path]:
    """Those of a group and of its ancestors."""
    for path in (group, *group.parents):
        yield base / path.relative_to("/")


def _own_group(membership: Path, controller: str) -> PurePosixPath:
    """Path of this process's group: lines are ``id:controllers:path``; the second version names no controllers."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return PurePosixPath("/")
    paths = [path for _, controllers, path in lines if controller in controllers.split(",")]
    return PurePosixPath(paths[0] if paths else "/")


def _least(readings: Iterator[N | None]) -> N | None:
    return min((reading for reading in readings if reading is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else float(quota) / float(period)


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _memory_v2(folder: Path) -> int | None:
    return _memory(folder, "memory.max", "memory.current", "inactive_file")


def _memory_v1(folder: Path) -> int | None:
    return _memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _memory(folder: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    limit, used = _number(folder / limit_name), _number(folder / used_name)
    if limit is None or used is None:
        return None
    # Files that were read or written once count as used, and make way for whoever needs memory.
    return max(0, limit - max(0, used - _field(folder / "memory.stat", cache_name)))


def _field(path: Path, name: str) -> int:
    try:
        fields = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(field[1]) for field in fields if len(field) == 2 and field[0] == name), 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


_MIN_STARTING = 8  # making an env is often waiting: for a disk, or for a simulator of its own to start


@dataclass(frozen=True)
class Cores:
    """The cores this process may run on, and the quota of time on them. kept: so many are kept free of actors.

    pins: whether processes can be pinned to cores here.
    """

    ids: tuple[int, ...]
    quota: float | None
    kept: int = 0
    pins: bool = True

    @staticmethod
    def available() -> Cores:
        """Read the affinity mask and the cgroup's quota of the calling process."""
        return Cores(tuple(sorted(os.sched_getaffinity(0))), cpu_quota())

    def keeping(self, cores: int) -> Cores:
        """The same with so many cores kept free of actors, fewer than there are."""
        assert cores < self.count
        return replace(self, kept=cores)

    @property
    def for_actors(self) -> tuple[int, ...]:
        """The cores that actors may be on."""
        return self.ids[self.kept :]

    @property
    def count(self) -> int:
        """Cores that can be kept busy: the mask's, or fewer if the quota is smaller."""
        if self.quota is None:
            return len(self.ids)
        return max(1, min(len(self.ids), math.ceil(self.quota)))

    def cores_of_actor(self, actor: int, num_actors: int) -> frozenset[int] | None:
        """What to pin an actor to: a core of its own, or all that are not kept free of actors.

        That is where actors outnumber them, or a quota makes cores of their own harmful. None: nothing is kept free
        then, or nobody can be pinned, and actors may be on any core.
        """
        if not self.pins:
            return None
        cores = self.for_actors
        if self.quota is None and num_actors <= len(cores):
            return frozenset({cores[actor]})
        return frozenset(cores) if self.kept else None

    def learner_threads(self, num_actors: int) -> int:
        """Threads for the learner's math: the cores that actors leave over, those that are kept free, at least one."""
        return max(1, self.kept, self.count - num_actors)

    def actors_starting(self, wanted: int) -> int:
        """How many actors may make and reset their envs at once: ``wanted``, or 0 for what the cores can serve."""
        return wanted or max(_MIN_STARTING, 2 * self.count)
