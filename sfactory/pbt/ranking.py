"""Room: who is among the best, who among the worst. In: objectives by policy. Out: what a policy's place is. Pure.

Room: what a population is ranked by. In: the statistics that episodes give. Out: the name of one, or a complaint.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from sfactory.config.population_rules import best_count
from sfactory.messages import TRUE_OBJECTIVE

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


REWARD, LENGTH = "reward", "length"
# What is known of every episode, whatever the env says of it.
BUILT_IN = (REWARD, LENGTH)


@dataclass(frozen=True)
class Found:
    """What to rank by. name: None if episodes do not have what was asked for. text: what a user should know."""

    name: str | None
    text: str = ""


class TargetObjective:
    """The statistic that pbt_target_objective names, looked for in the first ``stats_avg`` episodes."""

    def __init__(self, metric: str, stats_avg: int) -> None:
        self._metric, self._stats_avg = metric, stats_avg

    def look(self, episodes: int, reported: Collection[str]) -> Found | None:
        """What to rank by, once it is known; None as long as ``episodes`` are too few to tell.

        episodes: how many have ended so far, of all policies. reported: names of the extra statistics that they gave,
        with the true objective's if there is one. A run without a statistic to rank by (``Found.name`` is None) should
        end with ``Found.text``.
        """
        if self._metric in BUILT_IN or self._metric in reported:
            return Found(self._metric)
        if episodes < self._stats_avg:
            return None
        missing = f"pbt_target_objective={self._metric}: none of the first {episodes} episodes reported it"
        known = f"the env reports {', '.join([*BUILT_IN, *sorted(reported)])}"
        if self._metric == TRUE_OBJECTIVE:
            return Found(REWARD, f"{missing} ({known}); policies are ranked by the reward")
        return Found(None, f"{missing}; {known}: name one of these with --pbt_target_objective")
