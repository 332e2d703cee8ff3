"""Room: numbers about a run. In: finished episodes and step counts. Out: windowed means and rates. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class EpisodeStats:
    """Means over the last ``stats_avg`` finished episodes, and the best such mean so far.

    Episodes whose return is not finite are counted but enter no mean. What is asked before there is an
    episode is None.
    """

    def __init__(self, stats_avg: int) -> None:
        if stats_avg < 1:
            raise ValueError(f"stats_avg={stats_avg}: a mean needs at least one episode")
        self._stats_avg = stats_avg
        self._episodes = 0
        self._returns: FloatArray = np.empty(0, np.float64)
        self._lengths: FloatArray = np.empty(0, np.float64)
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
        self._episodes += new_returns.size
        finite = np.isfinite(new_returns)
        all_returns = np.concatenate([self._returns, new_returns[finite]])
        all_lengths = np.concatenate([self._lengths, new_lengths[finite]])
        if finite.any():
            self._update_best(all_returns, int(np.count_nonzero(finite)))
        self._returns = all_returns[-self._stats_avg :].copy()
        self._lengths = all_lengths[-self._stats_avg :].copy()

    def _update_best(self, returns: FloatArray, added: int) -> None:
        """Look at every full window that ends at one of the last ``added`` of ``returns``."""
        best = _best_window_mean(returns[-(added + self._stats_avg - 1) :], self._stats_avg)
        if best is not None:
            current = float(np.mean(returns[-self._stats_avg :]))
            self._best = max(best, current, current if self._best is None else self._best)

    @property
    def episodes(self) -> int:
        """Episodes finished so far."""
        return self._episodes

    @property
    def return_mean(self) -> float | None:
        """Mean return over the window."""
        return float(np.mean(self._returns)) if self._returns.size else None

    @property
    def return_min(self) -> float | None:
        """Least return in the window."""
        return float(np.min(self._returns)) if self._returns.size else None

    @property
    def return_max(self) -> float | None:
        """Greatest return in the window."""
        return float(np.max(self._returns)) if self._returns.size else None

    @property
    def length_mean(self) -> float | None:
        """Mean length over the window, in steps."""
        return float(np.mean(self._lengths)) if self._lengths.size else None

    @property
    def best_return_mean(self) -> float | None:
        """Best mean of any ``stats_avg`` episodes in a row; the current mean until there were that many."""
        return self.return_mean if self._best is None else self._best

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to go on counting: plain ints, floats and lists."""
        return {
            "episodes": self._episodes,
            "best_return_mean": self._best,
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave, also under another ``stats_avg``."""
        best = state["best_return_mean"]
        self._episodes = int(state["episodes"])
        self._best = None if best is None else float(best)
        self._returns = np.asarray(state["returns"], np.float64)[-self._stats_avg :]
        self._lengths = np.asarray(state["lengths"], np.float64)[-self._stats_avg :]


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
    # Samples closer than this are merged, which bounds memory however often the count is fed.
    RESOLUTION_S = 0.25

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._first: tuple[float, float] | None = None

    def add(self, now: float, count: float) -> None:
        """The count stood at ``count`` at ``now`` (``time.monotonic()``); neither may go back."""
        if self._first is None:
            self._first = (now, count)
        elif now < self._samples[-1][0] or count < self._samples[-1][1]:
            raise ValueError(f"sample ({now}, {count}) lies before {self._samples[-1]}")
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

    def rate(self, window_s: float) -> float | None:
        """Counts per second over the last ``window_s`` seconds (or since the first sample, if that is later)."""
        if not 0 < window_s <= self.LONGEST_WINDOW_S:
            raise ValueError(f"window_s={window_s}: windows reach back over 0 to {self.LONGEST_WINDOW_S} seconds")
        if not self._samples:
            return None
        start_s = self._samples[-1][0] - window_s
        older = [sample for sample in self._samples if sample[0] <= start_s]
        return self._rate_since(older[-1] if older else self._samples[0])

    @property
    def overall(self) -> float | None:
        """Counts per second since the first sample."""
        return None if self._first is None else self._rate_since(self._first)

    def _rate_since(self, start: tuple[float, float]) -> float | None:
        (start_s, start_count), (end_s, end_count) = start, self._samples[-1]
        return (end_count - start_count) / (end_s - start_s) if end_s > start_s else None
