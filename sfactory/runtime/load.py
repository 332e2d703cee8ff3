"""Room: where the time goes. In: the status board. Out: shares of busy and waiting time, depths of rings, a verdict.

Everything is read from counters that processes keep for themselves, so looking takes no lock of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfactory.clock import now
from sfactory.layout import ACTORS, LEARNERS, POLICY_WORKERS
from sfactory.shared.status import StatusBoard, Times

# Kinds of processes, and what comes to them through their rings.
KINDS = {"actor": ACTORS, "policy": POLICY_WORKERS, "learner": LEARNERS}
_RINGS = {"replies": ACTORS, "requests": POLICY_WORKERS, "trajectories": LEARNERS}
_SATURATED = 0.9  # a kind that is busy for this share of the time sets the pace


@dataclass(frozen=True)
class Depth:
    """How many messages a reader found in its ring whenever it found any, over a window.

    Of datasets: how many were ready whenever the learner wanted one, none included.
    """

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
    """Of one window: shares of time by kind of process, queues by what comes through them, a verdict.

    busy, waiting: of the time in which processes of that kind told how they spend it; they add up to 1.
    bound_by: the kind of process that sets the pace, "cores", or "nobody"; None if nothing was measured.
    idle_cores: what busy processes leave over of all cores, where each keeps one busy.
    """

    busy: dict[str, float]
    waiting: dict[str, float]
    rings: dict[str, Depth | None]
    bound_by: str | None
    idle_cores: float = 0.0

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
        self._queues = (*self._rings, "datasets")
        self._at = now()
        self._times, self._depths = self._read_times(), self._read_depths()

    def take(self) -> Load:
        """The load since the last call."""
        at, times, depths = now(), self._read_times(), self._read_depths()
        seconds = max(at - self._at, 1e-9)
        spent = {kind: _spent(self._times[kind], times[kind]) for kind in self._kinds}
        busy = {kind: _share(of.busy, of) for kind, of in spent.items()}
        waiting = {kind: _share(of.waiting, of) for kind, of in spent.items()}
        rings = {what: Depth.of(depths[what] - self._depths[what]) for what in self._queues}
        self._at, self._times, self._depths = at, times, depths
        in_use = {kind: of.busy / seconds for kind, of in spent.items()}
        idle = max(0.0, self._cores - sum(in_use.values()))
        return Load(busy, waiting, rings, self._bound_by(busy, in_use), idle)

    def _bound_by(self, busy: dict[str, float], in_use: dict[str, float]) -> str | None:
        """in_use: cores that processes of a kind keep busy."""
        if not any(busy.values()):
            return None
        if sum(in_use.values()) >= _SATURATED * max(self._cores, 1):
            # Every process that is ready to run counts as busy, so the cores are what is short.
            most = max(in_use, key=lambda kind: in_use[kind])
            fills_them = len(self._times[most]) >= self._cores
            return most if busy[most] >= _SATURATED and fills_them else "cores"
        most = max(busy, key=lambda kind: busy[kind])
        return most if busy[most] >= _SATURATED else "nobody"

    def _read_times(self) -> dict[str, list[Times]]:
        return {kind: self._status.times(prefix, now()) for kind, prefix in self._kinds.items()}

    def _read_depths(self) -> dict[str, npt.NDArray[np.int64]]:
        depths = {what: self._status.depths(prefix) for what, prefix in self._rings.items()}
        return depths | {"datasets": self._status.ready(LEARNERS)}


def _spent(before: list[Times], after: list[Times]) -> Times:
    """What all processes of a kind have spent between two looks."""
    busy = sum(b.busy - a.busy for a, b in zip(before, after, strict=True))
    waiting = sum(b.waiting - a.waiting for a, b in zip(before, after, strict=True))
    # A look between two marks may be wrong by the microsecond that it takes.
    return Times(max(0.0, busy), max(0.0, waiting))


def _share(seconds: float, spent: Times) -> float:
    total = spent.busy + spent.waiting
    return seconds / total if total else 0.0
