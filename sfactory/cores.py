"""Room: how much CPU this run may use. In: affinity mask and cgroup quota. Out: cores and thread budgets."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

_MIN_STARTING = 8  # making an env is often waiting: for a disk, or for a simulator of its own to start


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else float(quota) / float(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = float((folder / "cpu.cfs_quota_us").read_text())
        period = float((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None


def _own_group(membership: Path, controller: str) -> PurePosixPath:
    """Path of this process's cgroup: lines are ``id:controllers:path``; cgroup v2 names no controllers."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return PurePosixPath("/")
    paths = [path for _, controllers, path in lines if controller in controllers.split(",")]
    return PurePosixPath(paths[0] if paths else "/")


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs' worth of time this process may use (cgroup v2 or v1), or None where there is no limit.

    A limit holds for everything below it, so the least of the own group's and its ancestors' counts.
    """
    quotas = []
    for base, controller, read in ((root, "", _quota_v2), (root / "cpu", "cpu", _quota_v1)):
        group = _own_group(membership, controller)
        for folder in (group, *group.parents):
            quotas.append(read(base / folder.relative_to("/")))
    return min((quota for quota in quotas if quota is not None), default=None)


@dataclass(frozen=True)
class Cores:
    """The cores this process may run on, and the quota of time on them. kept: so many are kept free of actors."""

    ids: tuple[int, ...]
    quota: float | None
    kept: int = 0

    @staticmethod
    def available() -> Cores:
        """Read the affinity mask and the cgroup's quota of the calling process."""
        return Cores(tuple(sorted(os.sched_getaffinity(0))), cgroup_quota())

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
        then, and actors may be on any core.
        """
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
