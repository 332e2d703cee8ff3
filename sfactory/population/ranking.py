"""Room: who is among the best, who among the worst. In: objectives by policy. Out: what a policy's place is. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sfactory.config.population_rules import best_count

Objectives = Mapping[int, float | None]


class Place(Enum):
    """Where a policy stands."""

    UNRANKED = "unranked"  # it has no objective yet
    BEST = "best"
    MIDDLE = "middle"
    WORST = "worst"


@dataclass(frozen=True)
class Selection:
    """How many are the best and the worst, and how far behind somebody must be to be replaced."""

    fraction: float
    gap: float
    gap_absolute: float

    def is_behind(self, worse: float, better: float) -> bool:
        """Whether both gaps between two objectives are exceeded."""
        return better - worse > self.gap_absolute and relative_gap(worse, better) > self.gap


@dataclass(frozen=True)
class Standing:
    """The place of one policy. parents: the best that are ahead of it by both gaps, if it is among the worst."""

    place: Place
    parents: tuple[int, ...] = ()


def relative_gap(one: float, other: float) -> float:
    """The distance of two objectives as a share of the larger one, signs left away; 0 for equal ones.

    It is the same for -one and -other, and the same in every unit; of objectives with different signs it is above 1.
    """
    return 0.0 if one == other else abs(one - other) / max(abs(one), abs(other))


def ranked(objectives: Objectives) -> list[int]:
    """The policies that have an objective, the best first; of equal ones the lower number first."""
    known = {policy: value for policy, value in objectives.items() if value is not None and math.isfinite(value)}
    return sorted(known, key=lambda policy: (-known[policy], policy))


def best_of(objectives: Objectives, selection: Selection) -> list[int]:
    """The best policies: as many as the fraction of those that are ranked, rounded up."""
    order = ranked(objectives)
    return order[: best_count(selection.fraction, len(order))]


def standing(policy: int, objectives: Objectives, selection: Selection) -> Standing:
    """Where ``policy`` stands among all. Who is among the best is not among the worst, even where both overlap."""
    order, best, own = ranked(objectives), best_of(objectives, selection), objectives.get(policy)
    if own is None or policy not in order:
        return Standing(Place.UNRANKED)
    if policy in best:
        return Standing(Place.BEST)
    if policy not in order[-len(best) :]:
        return Standing(Place.MIDDLE)
    ahead = {parent: value for parent in best if (value := objectives[parent]) is not None}
    return Standing(Place.WORST, tuple(parent for parent, value in ahead.items() if selection.is_behind(own, value)))
