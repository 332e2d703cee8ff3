"""Ranking of policies: best, worst, and which may replace which; the statistic that they are ranked by."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sfactory.config.population_rules import best_count
from sfactory.messages import EpisodeExtras, EpisodesDone
from sfactory.pbt.ranking import (
    Place,
    RankingMetric,
    Selection,
    TargetObjective,
    best_of,
    ranked,
    relative_gap,
    standing,
)
from sfactory.report.policy_stats import PolicyStats

NUMBERS = st.floats(-1e9, 1e9, allow_subnormal=False)
OBJECTIVES = st.dictionaries(st.integers(0, 63), NUMBERS | st.none(), min_size=1, max_size=12)
SELECTIONS = st.builds(
    Selection,
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1e6),
)
EAGER = Selection(0.3, 0.1, 1e-6)


@given(OBJECTIVES, SELECTIONS)
def test_parents_are_better_by_both_gaps(objectives: dict[int, float | None], selection: Selection) -> None:
    for policy, own in objectives.items():
        for parent in standing(policy, objectives, selection).parents:
            other = objectives[parent]
            assert own is not None
            assert other is not None
            assert other - own > selection.gap_absolute
            assert relative_gap(other, own) > selection.gap
            assert parent in best_of(objectives, selection)


@given(OBJECTIVES, SELECTIONS)
def test_best_policies_are_not_replaced(objectives: dict[int, float | None], selection: Selection) -> None:
    order = ranked(objectives)

    for policy in order[: best_count(selection.fraction, len(order))]:
        found = standing(policy, objectives, selection)
        assert (found.place, found.parents) == (Place.BEST, ())


@given(OBJECTIVES, SELECTIONS)
def test_place_follows_from_the_order(objectives: dict[int, float | None], selection: Selection) -> None:
    order = ranked(objectives)
    best = best_count(selection.fraction, len(order))
    places = {policy: standing(policy, objectives, selection).place for policy in objectives}

    for rank, policy in enumerate(order):
        worst = rank >= len(order) - best
        assert places[policy] is (Place.BEST if rank < best else Place.WORST if worst else Place.MIDDLE)
    assert all(places[policy] is Place.UNRANKED for policy in objectives if policy not in order)


@given(NUMBERS, NUMBERS)
def test_relative_gap_does_not_depend_on_the_sign(one: float, other: float) -> None:
    assert relative_gap(one, other) == relative_gap(-one, -other) == relative_gap(other, one)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_relative_gap_does_not_depend_on_the_unit(one: float, other: float, unit: float) -> None:
    assume(max(abs(one), abs(other)) > 1e-6)

    assert relative_gap(unit * one, unit * other) == pytest.approx(relative_gap(one, other), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("worse", "better", "gap"),
    [(80, 100, 0.2), (-100, -80, 0.2), (0, 5, 1), (-5, 0, 1), (-100, 100, 2), (0, 0, 0), (3, 3, 0)],
)
def test_relative_gap_is_relative_to_the_larger_value(worse: float, better: float, gap: float) -> None:
    assert relative_gap(worse, better) == pytest.approx(gap)


def test_negative_objectives_are_ranked() -> None:
    objectives: dict[int, float | None] = {0: -200.0, 1: -100.0, 2: -150.0, 3: -1000.0}

    assert ranked(objectives) == [1, 2, 0, 3]
    assert standing(3, objectives, EAGER).parents == (1, 2)
    assert standing(0, objectives, EAGER).parents == (1, 2)
    assert standing(1, objectives, EAGER).place is Place.BEST


def test_both_gaps_must_be_exceeded() -> None:
    near: dict[int, float | None] = {0: 100.0, 1: 95.0}

    assert standing(1, near, Selection(0.3, 0.1, 1e-6)).parents == ()
    assert standing(1, near, Selection(0.3, 0.04, 1e-6)).parents == (0,)
    assert standing(1, near, Selection(0.3, 0.04, 5.0)).parents == ()
    assert standing(1, {0: 1.0, 1: 1.0}, Selection(0.3, 0.0, 0.0)).parents == ()


def test_only_best_policies_that_are_ahead_are_parents() -> None:
    objectives: dict[int, float | None] = {0: 100.0, 1: 61.0, 2: 60.5, 3: 60.0}

    assert standing(3, objectives, EAGER).parents == (0,)


def test_policies_without_objective_are_not_ranked() -> None:
    objectives: dict[int, float | None] = {0: 1.0, 1: None, 2: 50.0, 3: math.nan}

    assert ranked(objectives) == [2, 0]
    assert standing(1, objectives, EAGER).place is Place.UNRANKED
    assert standing(3, objectives, EAGER).place is Place.UNRANKED
    assert standing(7, objectives, EAGER).place is Place.UNRANKED
    assert standing(0, objectives, EAGER).parents == (2,)
    assert standing(2, {2: 50.0, 0: None}, EAGER).place is Place.BEST


def test_ties_are_ranked_by_number() -> None:
    objectives: dict[int, float | None] = {3: 5.0, 1: 5.0, 2: 5.0, 0: 5.0}

    assert ranked(objectives) == [0, 1, 2, 3]
    assert best_of(objectives, EAGER) == [0, 1]


@pytest.mark.parametrize(
    ("metric", "episodes", "reported", "expected"),
    [
        ("reward", 0, [], RankingMetric("reward")),
        ("length", 0, [], RankingMetric("length")),
        ("kills", 99, ["deaths"], None),
        ("kills", 99, ["deaths", "kills"], RankingMetric("kills")),
        ("true_objective", 500, ["deaths", "true_objective"], RankingMetric("true_objective")),
    ],
)
def test_metric_is_known_once_an_episode_has_reported_it(
    metric: str, episodes: int, reported: list[str], expected: RankingMetric | None
) -> None:
    assert TargetObjective(metric, 100).look(episodes, reported) == expected


@pytest.mark.parametrize(("metric", "used"), [("true_objective", "reward"), ("kils", None)])
def test_metric_that_no_episode_reports_is_replaced_or_refused(metric: str, used: str | None) -> None:
    found = TargetObjective(metric, 100).look(104, ["kills", "deaths"])

    assert found is not None
    assert found.name == used
    assert f"pbt_target_objective={metric}: none of the first 104" in found.text
    assert "reward, length, deaths, kills" in found.text


def test_policy_without_true_objective_is_not_ranked_by_its_returns() -> None:
    reporting, silent = PolicyStats(2, "reward"), PolicyStats(2, "reward")
    for stats in (reporting, silent):
        stats.add_episodes(EpisodesDone(0, np.array([200.0, 200.0]), np.array([10, 10])))
    reporting.add_extras(EpisodeExtras(0, "true_objective", np.array([0.5, 1.0])))

    assert (reporting.full_mean("true_objective"), silent.full_mean("true_objective")) == (0.75, None)
    assert reporting.full_mean("reward") == silent.full_mean("reward") == 200.0
