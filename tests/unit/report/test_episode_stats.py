"""Means over windows of episodes, and rates over windows of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.messages import MAX_STAT_NAMES, TRUE_OBJECTIVE
from sfactory.report.episode_stats import EpisodeStats, ExtraStats, Throughput


@pytest.mark.parametrize(
    ("batches", "stats_avg", "episodes", "mean", "best"),
    [
        ([[]], 100, 0, None, None),
        ([[0.0, 0.0, 8.0, 8.0], [8.0, 8.0, 0.0, 0.0, 0.0]], 4, 9, 2.0, 8.0),  # the best lies in two batches
        ([[1.0, float("nan"), 3.0, float("inf")], [float("nan")]], 2, 5, 2.0, 2.0),  # only finite returns are in it
    ],
)
def test_mean_and_best_of_returns(
    batches: list[list[float]], stats_avg: int, episodes: int, mean: float | None, best: float | None
) -> None:
    stats = EpisodeStats(stats_avg)
    for batch in batches:
        stats.add(np.array(batch), np.arange(len(batch)) + 1)

    assert (stats.episodes, stats.returns.mean, stats.best_return_mean) == (episodes, mean, best)
    assert stats.lengths.values.size == stats.returns.values.size


@settings(deadline=None)
@given(
    returns=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    stats_avg=st.integers(1, 12),
)
def test_best_and_mean_do_not_depend_on_the_cut_into_batches(
    returns: list[float], cuts: list[int], stats_avg: int
) -> None:
    stats = EpisodeStats(stats_avg)
    for batch in np.split(np.array(returns), sorted(min(cut, len(returns)) for cut in cuts)):
        stats.add(batch, np.ones(batch.size, np.int64))

    windows = [returns[i : i + stats_avg] for i in range(len(returns) - stats_avg + 1)] or [returns]
    assert stats.episodes == len(returns)
    assert stats.returns.mean == pytest.approx(np.mean(returns[-stats_avg:]), abs=1e-6)
    assert stats.best_return_mean == pytest.approx(max(np.mean(window) for window in windows), abs=1e-6)


def test_each_extra_statistic_has_its_own_window_and_names_are_limited() -> None:
    extras = ExtraStats(2)
    assert extras.window(TRUE_OBJECTIVE) is None

    added = [extras.add(f"name {number:02}", [1.0]) for number in range(MAX_STAT_NAMES + 5)]
    extras.add("name 00", [2.0, 4.0])

    assert added == [True] * 64 + [False] * 5
    assert extras.add(TRUE_OBJECTIVE, [0.5])  # it does not count
    assert [window.mean for window in extras.windows().values()] == [3.0] + [1.0] * 63
    assert (len(extras.names), extras.names[-1]) == (65, "true_objective")


@pytest.mark.parametrize(
    ("samples", "rate", "overall"),
    [
        ([], None, None),
        ([(1.0, 5)], None, None),
        ([(1.0, 5), (3.0, 5)], None, None),  # what it was before is not known
        ([(50.0, 1_000_000), (52.0, 1_000_400)], 200.0, 200.0),
        ([(0.0, 0), (10.0, 1000), (20.0, 1000)], 0.0, 100.0),  # a stall
        ([(0.0, 10), (5.0, 10), (10.0, 1010), (20.0, 1010)], 0.0, 100.0),  # a pause before the last increase counts
    ],
)
def test_rates_of_few_samples(samples: list[tuple[float, float]], rate: float | None, overall: float | None) -> None:
    rates = Throughput()
    for now, count in samples:
        rates.add(now, count)

    assert (rates.rate(10), rates.overall) == (rate, overall)


def test_peak_is_the_highest_rate_over_ten_seconds() -> None:
    rates, peaks = Throughput(), []
    for at, count in ((0, 0), (9, 900), (10, 1000), (15, 1500), (20, 2000), (25, 4500), (35, 5000)):
        rates.add(at, count)
        peaks.append(rates.peak)

    assert peaks == [None, None, 100.0, 100.0, 100.0, 300.0, 300.0]


def test_count_that_decreases_is_refused() -> None:
    rates = Throughput()
    rates.add(1.0, 5)
    with pytest.raises(ValueError, match="lies before"):
        rates.add(2.0, 4)
