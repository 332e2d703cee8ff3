"""Ranks policies by their objectives: which are the best, which are the worst, which may replace which."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from sfactory.config.population_rules import best_count
from sfactory.config.schema import PopulationConfig
from sfactory.errors import SFactoryError
from sfactory.messages import TRUE_OBJECTIVE

_log = logging.getLogger(__name__)

Objectives = Mapping[int, float | None]

REWARD, LENGTH = "reward", "length"
BUILT_IN = (REWARD, LENGTH)  # statistics that every episode has
# What is wrong with such a choice where the population mutates the reward shaping.
SHAPED_RETURN = (
    "%s: returns decide, and each policy earns by a reward shaping of its own, which the population mutates: one that "
    "pays itself more counts as better, however it plays; report true_objective in info at the end of an episode, and "
    "choose it or another statistic that does not depend on the shaping"
)


class Place(Enum):
    """Place of a policy in the ranking, in the words of the event log."""

    UNRANKED = "too few episodes to be ranked"
    BEST = "among the best"
    MIDDLE = "in the middle"
    WORST = "among the worst"


@dataclass(frozen=True)
class Standing:
    """Place of one policy. parents: if it is among the worst, the best policies that may replace it."""

    place: Place
    parents: tuple[int, ...] = ()


def is_return(metric: str) -> bool:
    """Whether the statistic is a sum of rewards, of an episode, of its agents together, or of one of them."""
    return metric in (REWARD, "team_return") or metric.startswith("return/")


def relative_gap(one: float, other: float) -> float:
    """Difference of two objectives divided by the larger absolute value; with different signs it exceeds 1."""
    return 0.0 if one == other else abs(one - other) / max(abs(one), abs(other))


def ranked(objectives: Objectives) -> list[int]:
    """Policies with a finite objective, the best first; ties by lower number."""
    known = {policy: value for policy, value in objectives.items() if value is not None and math.isfinite(value)}
    return sorted(known, key=lambda policy: (-known[policy], policy))


def best_of(objectives: Objectives, options: PopulationConfig) -> list[int]:
    """The best fraction of the ranked policies, rounded up."""
    order = ranked(objectives)
    return order[: best_count(options.pbt_replace_fraction, len(order))]


def standing(policy: int, objectives: Objectives, options: PopulationConfig) -> Standing:
    """Standing of ``policy``. If best and worst overlap, it counts as one of the best."""
    order, best, own = ranked(objectives), best_of(objectives, options), objectives.get(policy)
    if own is None or policy not in order:
        return Standing(Place.UNRANKED)
    if policy in best:
        return Standing(Place.BEST)
    if policy not in order[-len(best) :]:
        return Standing(Place.MIDDLE)
    absolute, relative = options.pbt_replace_reward_gap_absolute, options.pbt_replace_reward_gap
    known = {parent: value for parent in best if (value := objectives[parent]) is not None}
    ahead = (p for p, value in known.items() if value - own > absolute and relative_gap(own, value) > relative)
    return Standing(Place.WORST, tuple(ahead))


def ranking_metric(metric: str, stats_avg: int, episodes: int, reported: Collection[str]) -> str | None:
    """The statistic to rank by if pbt_target_objective is ``metric``; None while too few episodes ended to know.

    stats_avg: how many episodes are enough. episodes: those so far, of all policies. reported: names of the extra
    statistics in them. Raises SFactoryError if it is not reported; for a true objective the reward is used instead.
    """
    if metric in BUILT_IN or metric in reported:
        return metric
    if episodes < stats_avg:
        return None
    missing = f"pbt_target_objective={metric}: none of the first {episodes} episodes reported it"
    known = f"the env reports {', '.join([*BUILT_IN, *sorted(reported)])}"
    if metric == TRUE_OBJECTIVE:
        _log.info("%s (%s); policies are ranked by the reward", missing, known)
        return REWARD
    # No EnvError, which would refuse a start: training has begun.
    raise SFactoryError(f"{missing}; {known}: choose one of these with --pbt_target_objective")
