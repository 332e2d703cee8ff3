"""Means over windows of episodes, and rates over windows of time. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sfactory.messages import MAX_STAT_NAMES, TRUE_OBJECTIVE

FloatArray = npt.NDArray[np.float64]


class Window:
    """The last ``width`` finite numbers of a series."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.values: FloatArray = np.empty(0, np.float64)

    def add(self, values: npt.ArrayLike) -> None:
        """Add values ([K] float64), oldest first; values that are not finite are ignored."""
        new = np.asarray(values, np.float64)
        self.values = np.concatenate([self.values, new[np.isfinite(new)]])[-self._width :].copy()

    @property
    def mean(self) -> float | None:
        """Mean of the window; None if it is empty."""
        return float(np.mean(self.values)) if self.values.size else None

    @property
    def full_mean(self) -> float | None:
        """Mean of the window; None until there are ``width`` numbers."""
        return self.mean if self.values.size == self._width else None


class EpisodeStats:
    """Windows of the last ``stats_avg`` episodes with finite returns, and the best mean return of any such window."""

    def __init__(self, stats_avg: int) -> None:
        self._stats_avg = stats_avg
        self.episodes = 0
        self.best_full_mean: float | None = None  # of any stats_avg episodes in a row
        self.forget_last()

    def add(self, returns: npt.ArrayLike, lengths: npt.ArrayLike) -> None:
        """Add episodes in the order in which they ended: undiscounted raw returns and numbers of steps, both [K]."""
        new_returns, new_lengths = np.asarray(returns, np.float64), np.asarray(lengths, np.float64)
        self.episodes += new_returns.size
        finite = np.isfinite(new_returns)
        if finite.any():
            # Contains every window that ends at one of the new returns.
            windows = np.concatenate([self.returns.values[1 - self._stats_avg :], new_returns[finite]])
            self.returns.add(new_returns)
            self.lengths.add(new_lengths[finite])
            if (current := self.returns.full_mean) is not None:
                earlier = current if self.best_full_mean is None else self.best_full_mean
                self.best_full_mean = max(earlier, current, _best_window_mean(windows, self._stats_avg))

    def forget_last(self) -> None:
        """Start new windows."""
        self.returns, self.lengths = Window(self._stats_avg), Window(self._stats_avg)

    @property
    def best_return_mean(self) -> float | None:
        """Best mean of any ``stats_avg`` episodes in a row; the current mean until there are that many."""
        return self.returns.mean if self.best_full_mean is None else self.best_full_mean


class Best(NamedTuple):
    """The best mean return, None if unknown, and whether it is of stats_avg episodes."""

    mean: float | None
    is_full: bool

    @staticmethod
    def of(earlier: float | None, windows: Sequence[EpisodeStats]) -> Best:
        """Of the best of earlier sessions and of the ``windows`` of this one.

        Means of fewer than stats_avg episodes, as after a resume, count only while there has been no full one.
        """
        full = [best for best in (earlier, *(each.best_full_mean for each in windows)) if best is not None]
        partial = [best for each in windows if (best := each.best_return_mean) is not None]
        return Best(max(full or partial, default=None), bool(full))

    def entry(self) -> dict[str, Any]:
        """By the names of summary.json."""
        return {"best_episode_return_mean": self.mean, "best_is_full": self.is_full}


class ExtraStats:
    """Windows of the last ``stats_avg`` values of each extra episode statistic, by name."""

    def __init__(self, stats_avg: int) -> None:
        self._stats_avg = stats_avg
        self._windows: dict[str, Window] = {}

    def add(self, name: str, values: npt.ArrayLike) -> bool:
        """Add values ([K] float64) of ``name``; False if that is one name too many."""
        if name not in self._windows:
            if name != TRUE_OBJECTIVE and len(self.windows()) == MAX_STAT_NAMES:
                return False
            self._windows[name] = Window(self._stats_avg)
        self._windows[name].add(values)
        return True

    def forget_last(self) -> None:
        """Start new windows under the same names."""
        self._windows = {name: Window(self._stats_avg) for name in self._windows}

    @property
    def names(self) -> list[str]:
        """All names, sorted, the true objective included."""
        return sorted(self._windows)

    def window(self, name: str) -> Window | None:
        """The window of ``name``; None if it has never been reported."""
        return self._windows.get(name)

    def windows(self) -> dict[str, Window]:
        """All statistics except the true objective, sorted by name."""
        return {name: self._windows[name] for name in self.names if name != TRUE_OBJECTIVE}


def _best_window_mean(values: FloatArray, width: int) -> float:
    """Greatest mean of ``width`` consecutive ``values`` ([K], at least so many), in linear time."""
    # Sums of deviations stay small, so that differences of them stay precise.
    sums = np.concatenate([np.zeros(1), np.cumsum(values - values.mean())])
    start = int(np.argmax(sums[width:] - sums[:-width]))
    return float(np.mean(values[start : start + width]))


class Throughput:
    """Rates of a growing count, over recent windows and since the first sample."""

    LONGEST_WINDOW_S = 300.0
    PEAK_WINDOW_S = 10.0
    # Samples closer than this are merged, which bounds memory.
    RESOLUTION_S = 0.25

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._first: tuple[float, float] | None = None
        self._risen: tuple[float, float] | None = None  # the last sample with a higher count than the one before
        self.peak: float | None = None  # highest rate over PEAK_WINDOW_S so far

    def add(self, now: float, count: float) -> None:
        """Add a sample: the count at time ``now`` (``time.monotonic()``). Raises ValueError if either decreases."""
        if self._first is None:
            self._first = (now, count)
        elif now < self._samples[-1][0] or count < self._samples[-1][1]:
            raise ValueError(f"sample ({now}, {count}) lies before {self._samples[-1]}")
        elif count > self._samples[-1][1]:
            self._risen = (now, count)
        samples = self._samples
        if len(samples) >= 2 and samples[-1][0] - samples[-2][0] < self.RESOLUTION_S:
            samples[-1] = (now, count)
        else:
            samples.append((now, count))
        while len(samples) > 1 and samples[1][0] <= now - self.LONGEST_WINDOW_S:
            del samples[0]  # one sample older than the longest window stays: the window starts there
        if now - self._first[0] >= self.PEAK_WINDOW_S:
            self.peak = max(self.rate(self.PEAK_WINDOW_S) or 0.0, self.peak or 0.0)

    def rate(self, window_s: float) -> float | None:
        """Counts per second over the last ``window_s`` seconds (at most 300), or since the first sample if later.

        None until the count has risen: the first sample comes after the first counts.
        """
        if self._risen is None:
            return None
        start_s = self._samples[-1][0] - window_s
        older = [sample for sample in self._samples if sample[0] <= start_s]
        return _rate(older[-1] if older else self._samples[0], self._samples[-1])

    @property
    def overall(self) -> float | None:
        """Counts per second from the first sample to the last increase: saving and shutdown do not count."""
        return None if self._first is None or self._risen is None else _rate(self._first, self._risen)


def _rate(start: tuple[float, float], end: tuple[float, float]) -> float | None:
    """Counts per second between two samples; None if no time passed."""
    (start_s, start_count), (end_s, end_count) = start, end
    return (end_count - start_count) / (end_s - start_s) if end_s > start_s else None
