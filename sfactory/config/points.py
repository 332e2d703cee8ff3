"""Reads schedules as flags write them: ``0:5e-4,20e6:1e-6`` are (steps, value) points."""

from __future__ import annotations

import math
from itertools import pairwise

POINTS_FORM = "points as 0:5e-4,20e6:1e-6, which are trained env steps and the value there"


def points_error(text: str) -> str | None:
    """The problem of a schedule that may be empty; None if it is fine."""
    try:
        if text:
            parse_points(text)
    except ValueError as error:
        return f"must be {POINTS_FORM}: {error}"
    return None


def parse_points(text: str) -> tuple[tuple[float, float], ...]:
    """The points (steps, value) of ``text``: at least one, the first at step 0, steps strictly rising.

    Raises ValueError with all reasons if ``text`` has another form, or a value is negative or not finite.
    """
    if not text.strip():
        raise ValueError("holds no points")
    reasons: list[str] = []
    points = [point for word in text.split(",") if (point := _point(word.strip(), reasons)) is not None]
    if points and points[0][0] != 0:
        reasons.append(f"the first point must be at step 0, and is at {points[0][0]:g}")
    for (before, _), (after, _) in pairwise(points):
        if before == after:
            reasons.append(f"step {after:g} stands twice")
        if before > after:
            reasons.append(f"steps must rise, and {after:g} follows {before:g}")
    if reasons:
        raise ValueError("; ".join(reasons))
    return tuple(points)


def _point(word: str, reasons: list[str]) -> tuple[float, float] | None:
    """The point that ``word`` names, or None; appends its problems to ``reasons``."""
    try:
        steps, value = (float(number) for number in word.split(":"))
    except ValueError:
        reasons.append(f"{word!r} is not a point STEPS:VALUE")
        return None
    if not math.isfinite(steps) or not math.isfinite(value):
        reasons.append(f"both numbers of {word!r} must be finite")
        return None
    if value < 0:
        reasons.append(f"the value of {word!r} must be at least 0")
    return steps, value
