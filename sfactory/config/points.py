"""Reads schedules as flags write them: ``0:5e-4,20e6:1e-6`` are points, ``linear_decay`` is a fall to 0."""

from __future__ import annotations

import math
from itertools import pairwise

POINTS_FORM = "points as 0:5e-4,20e6:1e-6, which are trained env steps and the value there"
LINEAR_DECAY = "linear_decay"
DECAY_FORM = f"{LINEAR_DECAY}, or {LINEAR_DECAY}:0.6:0.9, which starts to fall at 60% of the limit and is 0 from 90% on"


def points_error(text: str, must_be: str = "must be ") -> str | None:
    """The problem of a schedule that may be empty; None if it is fine. must_be: what it begins with."""
    try:
        if text:
            parse_points(text)
    except ValueError as error:
        return f"{must_be}{POINTS_FORM}: {error}"
    return None


def decays(text: str) -> bool:
    """Whether the schedule ``text`` is a linear decay, of a right form or not."""
    return text.partition(":")[0] == LINEAR_DECAY


def decay_error(text: str) -> str | None:
    """The problem of a linear decay; None if it is fine."""
    try:
        decay_shares(text)
    except ValueError:
        return f"must be {DECAY_FORM}: 0 <= start < end <= 1"
    return None


def decay_shares(text: str) -> tuple[float, float]:
    """The shares of the limit of env steps where a decay starts and where it is at 0. ValueError: another form."""
    words = text.split(":")[1:] or ["0", "1"]
    start, end = (float(word) for word in words)
    if not 0 <= start < end <= 1:
        raise ValueError(text)
    return start, end


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
