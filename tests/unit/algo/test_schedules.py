"""Learning rates and coefficients follow their rules exactly."""

from __future__ import annotations

import math

import pytest

from sfactory.algo.schedules import KlAdaptive, KlCoefficient, PiecewiseLinear, linear_decay

ADAPTIVE = KlAdaptive(threshold=0.008, minimum=1e-6, maximum=1e-2)


@pytest.mark.parametrize(
    ("done", "expected"), [(0, 1e-3), (250, 7.5e-4), (500, 5e-4), (999, 1e-6), (1000, 0.0), (2000, 0.0), (-5, 1e-3)]
)
def test_linear_decay_falls_on_a_line_to_0_and_stays_there(done: int, expected: float) -> None:
    assert linear_decay(1e-3, done, 1000) == pytest.approx(expected, rel=1e-9, abs=1e-18)


def test_linear_decay_after_a_resume_goes_on_where_it_was() -> None:
    unbroken = [linear_decay(3e-4, done, 20) for done in range(20)]
    resumed = [linear_decay(3e-4, 10 + done, 20) for done in range(10)]

    assert unbroken[10:] == resumed


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.0161, 2e-4),  # just over twice the threshold
        (0.016, 3e-4),
        (0.008, 3e-4),
        (0.004, 3e-4),
        (0.0039, 4.5e-4),  # just under half of it
        (0.0, 4.5e-4),
        (math.inf, 2e-4),
        (math.nan, 3e-4),
    ],
)
def test_rate_falls_after_too_large_a_step_and_rises_after_too_small_a_one(kl: float, expected: float) -> None:
    assert ADAPTIVE.next(3e-4, kl) == pytest.approx(expected, rel=1e-12)


def test_rate_stays_within_its_bounds() -> None:
    low = high = 1e-3
    for _ in range(100):
        low, high = ADAPTIVE.next(low, 1.0), ADAPTIVE.next(high, 0.0)

    assert (low, high) == (1e-6, 1e-2)
    assert ADAPTIVE.next(1.0, 0.008) == 1e-2


def test_a_rate_that_has_fallen_rises_again_by_the_same_factor() -> None:
    fallen = ADAPTIVE.next(ADAPTIVE.next(9e-4, 1.0), 1.0)

    assert fallen == pytest.approx(4e-4, rel=1e-12)
    assert ADAPTIVE.next(ADAPTIVE.next(fallen, 0.0), 0.0) == pytest.approx(9e-4, rel=1e-12)


POINTS = PiecewiseLinear(((0, 5e-4), (3, 0.1), (20e6, 1e-6)))


@pytest.mark.parametrize(
    ("at", "expected"),
    [(0, 5e-4), (3, 0.1), (20e6, 1e-6)],
)
def test_a_schedule_of_points_has_exactly_their_values_where_they_stand(at: float, expected: float) -> None:
    assert POINTS.value(at) == expected


@pytest.mark.parametrize(
    ("at", "expected"),
    [(1.5, 0.05025), (1, 5e-4 + 0.0995 / 3), (3 + (20e6 - 3) / 2, 0.0500005), (3 + (20e6 - 3) / 4, 0.07500025)],
)
def test_a_schedule_of_points_is_a_line_between_two_of_them(at: float, expected: float) -> None:
    assert POINTS.value(at) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("at", "expected"), [(-1, 5e-4), (-1e9, 5e-4), (20e6 + 1, 1e-6), (1e12, 1e-6)])
def test_before_the_first_point_and_behind_the_last_their_values_hold(at: float, expected: float) -> None:
    assert POINTS.value(at) == expected


def test_a_single_point_is_a_constant() -> None:
    single = PiecewiseLinear(((0, 0.25),))

    assert [single.value(at) for at in (-1, 0, 0.5, 1e9)] == [0.25] * 4


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.0201, 0.3),  # just over twice the target
        (0.02, 0.2),
        (0.01, 0.2),
        (0.005, 0.2),
        (0.0049, 0.1),  # just under half of it
        (0.0, 0.1),
        (math.inf, 0.3),
        (math.nan, 0.2),
    ],
)
def test_the_penalty_on_divergence_weighs_more_after_too_much_of_it_and_less_after_too_little(
    kl: float, expected: float
) -> None:
    assert KlCoefficient(target=0.01).next(0.2, kl) == pytest.approx(expected, rel=1e-12)


def test_the_weight_of_the_penalty_stays_within_its_bounds() -> None:
    rule, low, high = KlCoefficient(target=0.01), 1.0, 1.0
    for _ in range(50):
        low, high = rule.next(low, 0.0), rule.next(high, 1.0)

    assert (low, high) == (1e-4, 1e2)
    assert (rule.bounded(0.0), rule.bounded(1e3), rule.bounded(0.5)) == (1e-4, 1e2, 0.5)
