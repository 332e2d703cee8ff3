"""Statistics of few runs: the interquartile mean, its bootstrap interval, and the probability of improvement.

Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice" (rliable).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Array]  # of the last axis

RESAMPLES = 10_000
_PERCENTILES = (2.5, 97.5)
_ENOUGH_EPISODES = 10
_MOST_NUMBERS = 4_000_000  # of resamples in memory at a time


def interquartile_mean(values: npt.ArrayLike) -> Array:
    """The mean of the last axis without the lowest and the highest quarter of its values, rounded down.

    values: [..., N] - N scores, at least one; with up to three it is their mean. Returns [...] float64.
    """
    scores = np.sort(np.asarray(values, np.float64))
    cut = scores.shape[-1] // 4
    means: Array = scores[..., cut : scores.shape[-1] - cut].mean(-1)
    return means


def bootstrap_interval(
    values: npt.ArrayLike, resamples: int = RESAMPLES, statistic: Statistic = interquartile_mean
) -> tuple[float, float]:
    """The 95% interval of a statistic: percentiles of a stratified bootstrap, the same in each call.

    values: [N] or [tasks, N] - N scores of each task, drawn again from those of their own task.
    """
    tasks = np.atleast_2d(np.asarray(values, np.float64))
    low, high = bootstrap_band(tasks[None], resamples, statistic)
    return float(low[0]), float(high[0])


def bootstrap_band(
    values: npt.ArrayLike, resamples: int = RESAMPLES, statistic: Statistic = interquartile_mean
) -> tuple[Array, Array]:
    """The interval of ``bootstrap_interval`` at each point of curves; a resample draws whole curves.

    values: [points, tasks, N]. Returns its lower and upper ends, each [points] float64.
    """
    scores = np.asarray(values, np.float64)
    points, tasks, runs = scores.shape
    drawing, means = np.random.default_rng(0), []
    at_once = max(1, _MOST_NUMBERS // max(scores.size, 1))
    for begin in range(0, resamples, at_once):
        rows = drawing.integers(runs, size=(min(at_once, resamples - begin), tasks, runs))
        again = np.take_along_axis(scores[None], rows[:, None], axis=3)
        means.append(statistic(again.reshape(len(rows), points, -1)))
    low, high = np.percentile(np.concatenate(means), _PERCENTILES, axis=0)
    return low, high


def probability_of_improvement(values: npt.ArrayLike, others: npt.ArrayLike) -> float:
    """How probable it is that a score of ``values`` is above one of ``others``; of equal ones half the pairs count.

    values, others: [N], [M] - scores of two groups of runs.
    """
    differences = np.asarray(values, np.float64)[:, None] - np.asarray(others, np.float64)
    return float(np.mean(np.sign(differences) + 1) / 2)


def sum_to_zero(team: npt.ArrayLike, each: Iterable[npt.ArrayLike]) -> bool:
    """Whether the returns of all agents sum to 0 in each of enough episodes, although agents have earned something.

    team: [N] - the sum of each episode. each: the returns of single agents, of any shapes.
    """
    sums = np.asarray(team, np.float64)
    return sums.size >= _ENOUGH_EPISODES and _is_zero(sums) and not all(map(_is_zero, each))


def _is_zero(returns: npt.ArrayLike) -> bool:
    return np.allclose(np.asarray(returns, np.float64), 0.0, atol=1e-6)
