"""Timeouts are scaled by one factor, as tests do."""

from __future__ import annotations

import pytest

from sfactory.timeouts import TIMEOUTS, Timeouts


def test_a_factor_scales_all_timeouts() -> None:
    scaled = Timeouts().scaled(0.5)

    assert Timeouts() == TIMEOUTS
    assert (scaled.ring, scaled.stall, scaled.save_grace) == (5.0, 15.0, 4.0)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_that_is_not_positive_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Timeouts().scaled(factor)
