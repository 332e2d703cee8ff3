"""Room: how much CPU this run may use. In: affinity mask and cgroup quota. Out: cores and thread budgets."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

from sfactory.cgroup import cpu_quota

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
