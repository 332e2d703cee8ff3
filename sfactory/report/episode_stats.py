"""Room: numbers about a run. In: finished episodes and step counts. Out: windowed means and rates. No I/O."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sfactory.messages import MAX_STAT_NAMES, TRUE_OBJECTIVE

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Window:
    """The last ``width`` numbers of a series. Numbers that are not finite do not enter; no number, no mean."""

    def __init__(self, width: int) -> None:
        if width < 1:
            raise ValueError(f"a window of {width} numbers: a mean needs at least one")
        self._width = width
        self.values: FloatArray = np.empty(0, np.float64)

    def add(self, values: npt.ArrayLike) -> None:
        """Take in values ([K] float64), the oldest first."""
        new = np.asarray(values, np.float64)
        self.values = np.concatenate([self.values, new[np.isfinite(new)]])[-self._width :].copy()

    @property
    def full(self) -> bool:
        """Whether ``width`` numbers have come in."""
        return self.values.size == self._width

    @property
    def mean(self) -> float | None:
        """Mean over the window."""
        return float(np.mean(self.values)) if self.values.size else None

    @property
    def min(self) -> float | None:
        """Least number in the window."""
        return float(np.min(self.values)) if self.values.size else None

    @property
    def max(self) -> float | None:
        """Greatest number in the window."""
        return float(np.max(self.values)) if self.values.size else None


class EpisodeStats:
    """Windows of the last ``stats_avg`` finished episodes, and the best mean return of any such window so far.

    Episodes whose return is not finite are counted but enter no window.
    """

    def __init__(self, stats_avg: int) -> None:
        self._stats_avg = stats_avg
        self.episodes = 0
        self.returns, self.lengths = Window(stats_avg), Window(stats_avg)
        self._best: float | None = None

    def add(self, returns: npt.ArrayLike, lengths: npt.ArrayLike) -> None:
        """Take in episodes in the order in which they ended.

        Args:
            returns: [K] float64 - undiscounted raw return of each episode.
            lengths: [K] int64 - steps of each episode.
        """
        new_returns = np.asarray(returns, np.float64)
        new_lengths = np.asarray(lengths, np.float64)
        if new_returns.ndim != 1 or new_returns.shape != new_lengths.shape:
            raise ValueError(f"returns {new_returns.shape} and lengths {new_lengths.shape}: both must be [K]")
        self.episodes += new_returns.size
        finite = np.isfinite(new_returns)
        if finite.any():
            # All windows that end at one of the new returns.
            windows = np.concatenate([self.returns.values[1 - self._stats_avg :], new_returns[finite]])
            self.returns.add(new_returns)
            self.lengths.add(new_lengths[finite])
            self._update_best(windows)

    def forget_last(self) -> None:
        """Begin new windows."""
        self.returns, self.lengths = Window(self._stats_avg), Window(self._stats_avg)

    def _update_best(self, returns: FloatArray) -> None:
        best, current = _best_window_mean(returns, self._stats_avg), self.returns.mean
        if best is not None and current is not None:
            self._best = max(best, current, current if self._best is None else self._best)

    @property
    def best_return_mean(self) -> float | None:
        """Best mean of any ``stats_avg`` episodes in a row; the current mean until there were that many."""
        return self.returns.mean if self._best is None else self._best


class ExtraStats:
    """Windows of the last ``stats_avg`` values of each extra statistic that episodes gave, by name."""

    def __init__(self, stats_avg: int) -> None:
        self._stats_avg = stats_avg
        self._windows: dict[str, Window] = {}

    def add(self, name: str, values: npt.ArrayLike) -> bool:
        """Take in values ([K] float64) of ``name``; False if it is one name more than are kept."""
        if name not in self._windows:
            if name != TRUE_OBJECTIVE and len(self.windows()) == MAX_STAT_NAMES:
                return False
            self._windows[name] = Window(self._stats_avg)
        self._windows[name].add(values)
        return True

    def forget_last(self) -> None:
        """Begin new windows, under the same names."""
        self._windows = {name: Window(self._stats_avg) for name in self._windows}

    @property
    def names(self) -> list[str]:
        """All names in order, with the true objective's if there is one."""
        return sorted(self._windows)

    def window(self, name: str) -> Window | None:
        """The values of ``name``; None if there are none."""
        return self._windows.get(name)

    def windows(self) -> dict[str, Window]:
        """All statistics but the true objective, in the order of their names."""
        return {name: self._windows[name] for name in self.names if name != TRUE_OBJECTIVE}


def _best_window_mean(values: FloatArray, width: int) -> float | None:
    """Greatest mean of ``width`` consecutive ``values`` ([K]), in linear time; None if there are fewer."""
    if values.size < width:
        return None
    # Sums of deviations stay small, so that their differences keep their digits.
    sums = np.concatenate([np.zeros(1), np.cumsum(values - values.mean())])
    start = int(np.argmax(sums[width:] - sums[:-width]))
    return float(np.mean(values[start : start + width]))


class Throughput:
    """Rates of a growing count, over recent windows and since the first sample."""

    LONGEST_WINDOW_S = 300.0
    PEAK_WINDOW_S = 10.0
    # Samples closer than this are merged, which bounds memory however often the count is fed.
    RESOLUTION_S = 0.25

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._first: tuple[float, float] | None = None
        self._risen: tuple[float, float] | None = None  # the last sample in which the count was higher than before
        self.peak: float | None = None  # the highest rate over PEAK_WINDOW_S so far; None until there was such a window

    def add(self, now: float, count: float) -> None:
        """The count stood at ``count`` at ``now`` (``time.monotonic()``); neither may go back."""
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
        # The newest of the samples older than the longest window is where that window starts.
        outdated = 0
        while outdated + 1 < len(samples) and samples[outdated + 1][0] <= now - self.LONGEST_WINDOW_S:
            outdated += 1
        del samples[:outdated]
        if now - self._first[0] >= self.PEAK_WINDOW_S:
            self.peak = max(self.rate(self.PEAK_WINDOW_S) or 0.0, self.peak or 0.0)

    def rate(self, window_s: float) -> float | None:
        """Counts per second over the last ``window_s`` seconds (or since the first sample, if that is later)."""
        if not 0 < window_s <= self.LONGEST_WINDOW_S:
            raise ValueError(f"window_s={window_s}: windows reach back over 0 to {self.LONGEST_WINDOW_S} seconds")
        if not self._samples:
            return None
        start_s = self._samples[-1][0] - window_s
        older = [sample for sample in self._samples if sample[0] <= start_s]
        return _rate(older[-1] if older else self._samples[0], self._samples[-1])

    @property
    def overall(self) -> float | None:
        """Counts per second from the first sample to the last rise: saving and ending are no part of it."""
        return None if self._first is None or self._risen is None else _rate(self._first, self._risen)


def _rate(start: tuple[float, float], end: tuple[float, float]) -> float | None:
    """Counts per second between two samples; None where no time passed."""
    (start_s, start_count), (end_s, end_count) = start, end
    return (end_count - start_count) / (end_s - start_s) if end_s > start_s else None
