"""Room: where the time goes. In: the status board. Out: shares of busy and waiting time, depths of rings, a verdict.

Everything is read from counters that processes keep for themselves, so looking takes no lock of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfactory.clock import now
from sfactory.layout import ACTORS, LEARNERS, POLICY_WORKERS
from sfactory.shared.status import StatusBoard

# Kinds of processes, and what comes to them through their rings.
KINDS = {"actor": ACTORS, "policy": POLICY_WORKERS, "learner": LEARNERS}
_RINGS = {"replies": ACTORS, "requests": POLICY_WORKERS, "trajectories": LEARNERS}
_SATURATED = 0.9  # a kind that is busy for this share of the time sets the pace

_ADVICE = {
    "actor": "stepping environments sets the pace; with idle cores, more --num_workers, else cheaper environments",
    "policy": "choosing actions sets the pace; try --inference=local, more --policy_workers_per_policy, or a wider "
    "--num_envs_per_worker",
    "learner": "learning sets the pace; a larger --batch_size, fewer --num_epochs or more --learner_num_threads help",
    "cores": "all cores are busy; fewer --num_workers take nothing away, more cores help",
    "nobody": "processes wait for one another; more --num_envs_per_worker or --worker_num_splits=2 overlap their work",
}


@dataclass(frozen=True)
class Depth:
    """How many messages a reader found in its ring whenever it found any, over a window."""

    count: int
    mean: float
    std: float
    min: float
    p10: float
    p50: float
    p90: float
    max: float

    @staticmethod
    def of(histogram: npt.NDArray[np.int64]) -> Depth | None:
        """Statistics of depths 0, 1, ... by how often each was seen; None if none was."""
        count = int(histogram.sum())
        if not count:
            return None
        depths = np.arange(len(histogram))
        seen = depths[histogram > 0]
        mean = float((depths * histogram).sum() / count)
        variance = float(((depths - mean) ** 2 * histogram).sum() / count)
        below = np.cumsum(histogram)
        p10, p50, p90 = (float(np.searchsorted(below, share * count)) for share in (0.1, 0.5, 0.9))
        return Depth(count, mean, variance**0.5, float(seen[0]), p10, p50, p90, float(seen[-1]))


@dataclass(frozen=True)
class Load:
    """Of one window: shares of time by kind (mean over its processes), rings by what comes through them, a verdict.

    bound_by: the kind of process that sets the pace, "cores", or "nobody"; None if nothing was measured.
    """

    busy: dict[str, float]
    waiting: dict[str, float]
    rings: dict[str, Depth | None]
    bound_by: str | None

    @property
    def advice(self) -> str | None:
        """What the verdict means, and which flag would help."""
        return None if self.bound_by is None else f"bound by {self.bound_by}: {_ADVICE[self.bound_by]}"

    def scalars(self) -> dict[str, float | None]:
        """``load/<kind>_busy``, ``load/<kind>_waiting`` and ``ring/<what>_<statistic>``."""
        row: dict[str, float | None] = {f"load/{kind}_busy": share for kind, share in self.busy.items()}
        row |= {f"load/{kind}_waiting": share for kind, share in self.waiting.items()}
        for what, depth in self.rings.items():
            for statistic in Depth.__dataclass_fields__:
                row[f"ring/{what}_{statistic}"] = None if depth is None else getattr(depth, statistic)
        return row


class LoadMeter:
    """Measures window after window, each from one ``take`` to the next."""

    def __init__(self, status: StatusBoard, cores: int) -> None:
        """``cores``: how many processes can run at once."""
        self._status, self._cores = status, cores
        self._kinds = {kind: prefix for kind, prefix in KINDS.items() if status.values("pid", prefix)}
        self._rings = {what: prefix for what, prefix in _RINGS.items() if prefix in self._kinds.values()}
        if "policy" not in self._kinds:
            self._rings.pop("replies")  # actors with a policy of their own are answered by nobody
        self._at = now()
        self._times, self._depths = self._read_times(), self._read_depths()

    def take(self) -> Load:
        """The load since the last call."""
        at, times, depths = now(), self._read_times(), self._read_depths()
        seconds = max(at - self._at, 1e-9)
        busy = {kind: self._share(times, kind, 0, seconds) for kind in self._kinds}
        waiting = {kind: self._share(times, kind, 1, seconds) for kind in self._kinds}
        rings = {what: Depth.of(depths[what] - self._depths[what]) for what in self._rings}
        self._at, self._times, self._depths = at, times, depths
        return Load(busy, waiting, rings, self._bound_by(busy))

    def _share(self, times: dict[str, tuple[list[float], list[float]]], kind: str, which: int, seconds: float) -> float:
        after, before = times[kind][which], self._times[kind][which]
        return float(np.mean([(b - a) / seconds for a, b in zip(before, after, strict=True)]))

    def _bound_by(self, busy: dict[str, float]) -> str | None:
        if not any(busy.values()):
            return None
        processes = {kind: len(self._times[kind][0]) for kind in busy}
        if sum(busy[kind] * processes[kind] for kind in busy) >= _SATURATED * max(self._cores, 1):
            # Every process that is ready to run counts as busy, so the cores are what is short.
            most = max(busy, key=lambda kind: busy[kind] * processes[kind])
            return most if busy[most] >= _SATURATED and processes[most] >= self._cores else "cores"
        most = max(busy, key=lambda kind: busy[kind])
        return most if busy[most] >= _SATURATED else "nobody"

    def _read_times(self) -> dict[str, tuple[list[float], list[float]]]:
        values = self._status.values
        return {kind: (values("busy_s", prefix), values("waiting_s", prefix)) for kind, prefix in self._kinds.items()}

    def _read_depths(self) -> dict[str, npt.NDArray[np.int64]]:
        return {what: self._status.depths(prefix) for what, prefix in self._rings.items()}
