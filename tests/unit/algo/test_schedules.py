"""Learning rates and coefficients follow their rules exactly."""

from __future__ import annotations

import math

import pytest

from sfactory.algo.schedules import KlAdaptive, PiecewiseLinear, kl_adaptive_rate, kl_penalty_weight

ADAPTIVE = kl_adaptive_rate(threshold=0.008, minimum=1e-6, maximum=1e-2)
PENALTY = kl_penalty_weight(target=0.01)


@pytest.mark.parametrize(
    ("rule", "start", "expected"),
    [
        # Just over twice the threshold, within a factor of 2 of it, just under half of it.
        (
            ADAPTIVE,
            3e-4,
            {0.0161: 2e-4, 0.016: 3e-4, 0.008: 3e-4, 0.004: 3e-4, 0.0039: 4.5e-4, 0.0: 4.5e-4, math.inf: 2e-4},
        ),
        (PENALTY, 0.2, {0.0201: 0.3, 0.02: 0.2, 0.01: 0.2, 0.005: 0.2, 0.0049: 0.1, 0.0: 0.1, math.inf: 0.3}),
    ],
)
def test_adaptive_values_change_after_too_large_or_too_small_a_divergence(
    rule: KlAdaptive, start: float, expected: dict[float, float]
) -> None:
    assert {kl: rule.next(start, kl) for kl in expected} == pytest.approx(expected, rel=1e-12)
    assert rule.next(start, math.nan) == start


def test_adaptive_values_stay_within_their_bounds() -> None:
    rate_low = rate_high = penalty_low = penalty_high = 1e-3
    for _ in range(100):
        rate_low, rate_high = ADAPTIVE.next(rate_low, 1.0), ADAPTIVE.next(rate_high, 0.0)
        penalty_low, penalty_high = PENALTY.next(penalty_low, 0.0), PENALTY.next(penalty_high, 1.0)

    assert (rate_low, rate_high, penalty_low, penalty_high) == (1e-6, 1e-2, 1e-4, 1e2)
    assert ADAPTIVE.next(1.0, 0.008) == 1e-2
    assert (PENALTY.bounded(0.0), PENALTY.bounded(1e3), PENALTY.bounded(0.5)) == (1e-4, 1e2, 0.5)


def test_a_schedule_of_points_is_exact_at_them_linear_between_and_constant_outside() -> None:
    points = PiecewiseLinear(((0, 5e-4), (3, 0.1), (20e6, 1e-6)))
    exact = {0: 5e-4, 3: 0.1, 20e6: 1e-6, -1: 5e-4, -1e9: 5e-4, 20e6 + 1: 1e-6, 1e12: 1e-6}
    between = {1.5: 0.05025, 1: 5e-4 + 0.0995 / 3, 3 + (20e6 - 3) / 2: 0.0500005, 3 + (20e6 - 3) / 4: 0.07500025}

    assert {at: points.value(at) for at in exact} == exact
    assert {at: points.value(at) for at in between} == pytest.approx(between, rel=1e-12)
    assert {PiecewiseLinear(((0, 0.25),)).value(at) for at in (-1, 0, 0.5, 1e9)} == {0.25}
