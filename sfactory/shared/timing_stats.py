"""Where a learner's time goes, and by how much policies lag: means over the time since the last report."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator

from sfactory.clock import now
from sfactory.messages import LearnerTimes, PolicyLag

# Fields of LearnerTimes, without their unit.
STRETCHES = ("grad", "load", "load_wait", "dequeue", "publish")


class Timings:
    """Mean duration of named stretches of time, from any thread, since ``clear``.

    Sums only grow: a stretch that ends between ``message`` and ``clear`` is part of the next means.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, tuple[float, int]] = dict.fromkeys(STRETCHES, (0.0, 0))  # seconds, number
        self._cleared = self._reported = dict(self._sums)
        self._updates = 0

    def add(self, name: str, seconds: float) -> None:
        """Count a stretch of ``seconds``; KeyError for a name that is not in STRETCHES."""
        with self._lock:
            total, count = self._sums[name]
            self._sums[name] = (total + seconds, count + 1)

    @contextlib.contextmanager
    def stretch(self, name: str) -> Iterator[None]:
        """Times the body, unless it fails."""
        since = now()
        yield
        self.add(name, now() - since)

    def message(self, policy: int, updates: int) -> LearnerTimes:
        """The means for main, NaN without a stretch. ``updates``: in stretches of "grad" since the last message."""
        self._updates += updates
        with self._lock:
            self._reported = dict(self._sums)
        means = {f"{name}_ms": _mean_ms(*self._since_cleared(name)) for name in STRETCHES}
        update_ms = _mean_ms(self._since_cleared("grad")[0], self._updates)
        return LearnerTimes(policy=policy, update_ms=update_ms, **means)

    def clear(self) -> None:
        """Begin new means, after the last message."""
        self._cleared, self._updates = self._reported, 0

    def _since_cleared(self, name: str) -> tuple[float, int]:
        """Seconds and number of the stretches since ``clear``."""
        (total, count), (total_before, count_before) = self._reported[name], self._cleared[name]
        return total - total_before, count - count_before


def _mean_ms(seconds: float, count: int) -> float:
    return 1e3 * seconds / count if count else math.nan


class LagStats:
    """Minimum, mean and maximum of policy lags since the last ``clear``."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._min, self._max, self._total, self._weight = math.inf, -math.inf, 0.0, 0.0

    def add(self, lag: PolicyLag, weight: float) -> None:
        """Count ``lag``, with a mean that counts as much as its ``weight``; nothing if it is of no step."""
        if lag.min is not None and lag.mean is not None and lag.max is not None:
            self.add_sums(lag.min, lag.max, lag.mean * weight, weight)

    def add_sums(self, least: float, greatest: float, total: float, weight: float) -> None:
        """Count lags by their least, greatest and weighted sum."""
        self._min, self._max = min(self._min, least), max(self._max, greatest)
        self._total += total
        self._weight += weight

    def value(self) -> PolicyLag:
        """Of all that was counted."""
        if not self._weight:
            return PolicyLag()
        return PolicyLag(self._min, self._total / self._weight, self._max)
