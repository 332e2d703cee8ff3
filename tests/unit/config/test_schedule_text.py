"""Schedules as they are written in flags: points, or one reason why not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactory.config.schedule_text import parse_points


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("0:5e-4,20e6:1e-6", ((0.0, 5e-4), (2e7, 1e-6))),
        ("0:0.01, 1_000_000:0", ((0.0, 0.01), (1e6, 0.0))),
        (" 0 : 1 , 2.5 : 3 ", ((0.0, 1.0), (2.5, 3.0))),
    ],
)
def test_points_are_steps_and_values(text: str, points: tuple[tuple[float, float], ...]) -> None:
    assert parse_points(text) == points


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no points"),
        ("5e-4", "'5e-4' is not a point STEPS:VALUE"),
        ("0:", "'0:' is not a point STEPS:VALUE"),
        ("0:1,", "'' is not a point STEPS:VALUE"),
        ("0:1:2", "'0:1:2' is not a point STEPS:VALUE"),
        ("0:a", "'0:a' is not a point STEPS:VALUE"),
        ("10:1", "the first point must be at step 0, and is at 10"),
        ("0:1,20:1,10:1", "steps must rise, and 10 follows 20"),
        ("0:1,10:1,10:2", "step 10 stands twice"),
        ("0:1,5:-1e-9", "the value of '5:-1e-9' must be at least 0"),
        ("0:nan", "both numbers of '0:nan' must be finite"),
    ],
)
def test_wrong_points_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        parse_points(text)


@given(
    steps=st.sets(st.floats(min_value=1e-3, max_value=1e12), max_size=5),
    values=st.lists(st.floats(min_value=0, max_value=1e6), min_size=6, max_size=6),
)
def test_every_rising_list_that_begins_at_zero_is_read_back_exactly(steps: set[float], values: list[float]) -> None:
    points = tuple(zip([0.0, *sorted(steps)], values, strict=False))

    assert parse_points(",".join(f"{step!r}:{value!r}" for step, value in points)) == points
