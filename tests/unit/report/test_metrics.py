"""Means over windows of episodes, and rates over windows of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.messages import MAX_STAT_NAMES, TRUE_OBJECTIVE
from sfactory.report.episode_stats import EpisodeStats, ExtraStats, Throughput, Window


def stats_of(returns: list[float], stats_avg: int) -> EpisodeStats:
    stats = EpisodeStats(stats_avg)
    stats.add(np.array(returns), np.arange(len(returns)) + 1)
    return stats


def test_before_any_episode_there_are_no_means() -> None:
    stats = EpisodeStats(100)

    stats.add(np.empty(0), np.empty(0, np.int64))

    assert stats.episodes == 0
    means = (stats.returns.mean, stats.best_return_mean, stats.lengths.mean, stats.returns.min, stats.returns.max)
    assert means == (None,) * 5


def test_means_cover_the_last_episodes_only() -> None:
    stats = stats_of([100.0, 1.0, 2.0, 6.0], stats_avg=3)

    assert stats.episodes == 4
    assert stats.returns.mean == 3.0
    assert stats.returns.min == 1.0
    assert stats.returns.max == 6.0
    assert stats.lengths.mean == 3.0


def test_best_is_found_within_a_batch_and_not_only_at_its_end() -> None:
    stats = stats_of([0.0, 9.0, 9.0, 0.0, 0.0], stats_avg=2)

    assert stats.returns.mean == 0.0
    assert stats.best_return_mean == 9.0


def test_best_is_found_where_two_batches_meet() -> None:
    stats = EpisodeStats(4)
    stats.add(np.array([0.0, 0.0, 8.0, 8.0]), np.ones(4, np.int64))
    stats.add(np.array([8.0, 8.0, 0.0, 0.0, 0.0]), np.ones(5, np.int64))

    assert stats.best_return_mean == 8.0


def test_until_the_window_is_full_the_best_is_the_current_mean() -> None:
    stats = stats_of([10.0, 0.0], stats_avg=3)
    assert stats.best_return_mean == 5.0

    stats.add(np.array([2.0]), np.array([1]))
    assert stats.best_return_mean == 4.0


@settings(deadline=None)
@given(
    returns=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    stats_avg=st.integers(1, 12),
)
def test_any_cut_into_batches_gives_what_every_window_by_itself_gives(
    returns: list[float], cuts: list[int], stats_avg: int
) -> None:
    stats = EpisodeStats(stats_avg)
    for batch in np.split(np.array(returns), sorted(min(cut, len(returns)) for cut in cuts)):
        stats.add(batch, np.ones(batch.size, np.int64))

    windows = [returns[i : i + stats_avg] for i in range(len(returns) - stats_avg + 1)] or [returns]
    assert stats.episodes == len(returns)
    assert stats.returns.mean == pytest.approx(np.mean(returns[-stats_avg:]), abs=1e-6)
    assert stats.best_return_mean == pytest.approx(max(np.mean(window) for window in windows), abs=1e-6)
    assert stats.best_return_mean is not None
    assert stats.returns.mean is not None
    assert stats.best_return_mean >= stats.returns.mean


def test_a_return_that_is_not_finite_is_counted_but_enters_no_mean() -> None:
    stats = stats_of([1.0, float("nan"), 3.0, float("inf")], stats_avg=2)

    assert stats.episodes == 4
    assert stats.returns.mean == 2.0
    assert stats.best_return_mean == 2.0


def test_arrays_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"both must be \[K\]"):
        EpisodeStats(2).add(np.zeros(3), np.zeros(2, np.int64))


def test_a_window_needs_room_for_one_number() -> None:
    with pytest.raises(ValueError, match="a window of 0 numbers"):
        Window(0)


def test_a_window_has_the_last_finite_numbers_and_is_full_when_there_are_enough() -> None:
    window = Window(3)
    assert (window.mean, window.min, window.max, window.full) == (None, None, None, False)

    window.add([1.0, float("nan"), 5.0])
    assert (window.mean, window.min, window.max, window.full) == (3.0, 1.0, 5.0, False)

    window.add([float("inf"), 6.0, 7.0])
    assert (window.mean, window.min, window.max, window.full) == (6.0, 5.0, 7.0, True)


def test_lengths_have_a_window_of_their_own() -> None:
    stats = EpisodeStats(2)

    stats.add([1.0, 2.0, 3.0], [100, 20, 30])

    assert (stats.lengths.mean, stats.lengths.min, stats.lengths.max) == (25.0, 20.0, 30.0)


def test_each_extra_statistic_has_a_window_of_its_own() -> None:
    extras = ExtraStats(2)
    assert extras.window(TRUE_OBJECTIVE) is None

    extras.add("kills", [1.0, 2.0])
    extras.add("coins", [7.0])
    extras.add("kills", [4.0])
    extras.add(TRUE_OBJECTIVE, [0.5])

    assert {name: window.mean for name, window in extras.windows().items()} == {"coins": 7.0, "kills": 3.0}
    assert list(extras.windows()) == ["coins", "kills"]
    assert extras.names == ["coins", "kills", "true_objective"]
    objective = extras.window(TRUE_OBJECTIVE)
    assert objective is not None
    assert objective.mean == 0.5


def test_there_is_a_limit_to_names_and_the_true_objective_does_not_count() -> None:
    extras = ExtraStats(2)

    taken = [extras.add(f"name {number}", [1.0]) for number in range(MAX_STAT_NAMES + 5)]

    assert taken == [True] * 64 + [False] * 5
    assert extras.add(TRUE_OBJECTIVE, [2.0])
    assert extras.add("name 0", [3.0])
    assert (len(extras.windows()), len(extras.names)) == (64, 65)


def test_rates_look_back_over_their_own_window() -> None:
    throughput = Throughput()
    # 100 a second for 60 seconds, then 1000 a second for 10.
    for second in range(61):
        throughput.add(1000.0 + second, 100 * second)
    for second in range(1, 11):
        throughput.add(1060.0 + second, 6000 + 1000 * second)

    assert throughput.rate(10) == pytest.approx(1000)
    assert throughput.rate(60) == pytest.approx((50 * 100 + 10 * 1000) / 60)
    assert throughput.rate(300) == pytest.approx(16_000 / 70)
    assert throughput.overall == pytest.approx(16_000 / 70)


def test_rates_count_from_the_first_sample_whatever_it_was() -> None:
    throughput = Throughput()
    throughput.add(50.0, 1_000_000)
    throughput.add(52.0, 1_000_400)

    assert throughput.rate(10) == 200.0
    assert throughput.overall == 200.0


def test_without_elapsed_time_there_is_no_rate() -> None:
    throughput = Throughput()
    assert throughput.rate(10) is None
    assert throughput.overall is None

    throughput.add(1.0, 5)
    assert throughput.rate(10) is None
    assert throughput.overall is None


def test_a_stall_shows_as_a_falling_rate() -> None:
    throughput = Throughput()
    throughput.add(0.0, 0)
    throughput.add(10.0, 1000)
    throughput.add(20.0, 1000)

    assert throughput.rate(10) == 0.0
    assert throughput.rate(20) == 50.0


def test_the_overall_rate_ends_with_the_last_rise() -> None:
    throughput = Throughput()
    overall = []
    for now, count in ((0.0, 10), (5.0, 10), (10.0, 1010), (10.1, 1030), (19.0, 1030), (20.0, 1030)):
        throughput.add(now, count)
        overall.append(throughput.overall)

    # A pause before the last rise is part of it, one after it is not.
    assert overall == [None, None, 100.0, *[pytest.approx(1020 / 10.1)] * 3]


def test_dense_and_long_feeding_keeps_rates_right() -> None:
    throughput = Throughput()
    for tick in range(50_000):
        throughput.add(tick * 0.02, tick * 2)

    assert throughput.rate(10) == pytest.approx(100, rel=0.03)
    assert throughput.rate(300) == pytest.approx(100, rel=0.01)
    assert throughput.overall == pytest.approx(100)


def test_a_count_that_goes_back_is_refused() -> None:
    throughput = Throughput()
    throughput.add(1.0, 5)

    with pytest.raises(ValueError, match="lies before"):
        throughput.add(2.0, 4)


def test_the_peak_is_the_highest_rate_over_ten_seconds() -> None:
    throughput, count = Throughput(), 0.0
    # 100 a second for 20 s, then 500 a second for 5 s only, then 50 a second.
    for second in range(60):
        throughput.add(1000.0 + second, count)
        if second == 9:
            assert throughput.peak is None
        if second == 10:
            assert throughput.peak == 100.0
        count += 500.0 if 20 <= second < 25 else 100.0 if second < 20 else 50.0

    assert throughput.peak == (5 * 100.0 + 5 * 500.0) / 10.0
