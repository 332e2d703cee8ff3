"""Who is among the best and the worst of a population, and who may take over from whom."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sfactory.config.population_rules import best_count
from sfactory.pbt.ranking import Place, Selection, best_of, ranked, relative_gap, standing

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
def test_nobody_takes_over_from_one_that_is_not_better_by_both_gaps(
    objectives: dict[int, float | None], selection: Selection
) -> None:
    for policy, own in objectives.items():
        for parent in standing(policy, objectives, selection).parents:
            other = objectives[parent]
            assert own is not None
            assert other is not None
            assert other - own > selection.gap_absolute
            assert relative_gap(other, own) > selection.gap
            assert parent in best_of(objectives, selection)


@given(OBJECTIVES, SELECTIONS)
def test_the_best_are_left_alone(objectives: dict[int, float | None], selection: Selection) -> None:
    order = ranked(objectives)

    for policy in order[: best_count(selection.fraction, len(order))]:
        found = standing(policy, objectives, selection)
        assert (found.place, found.parents) == (Place.BEST, ())


@given(OBJECTIVES, SELECTIONS)
def test_every_place_follows_from_the_order_alone(objectives: dict[int, float | None], selection: Selection) -> None:
    order = ranked(objectives)
    best = best_count(selection.fraction, len(order))
    places = {policy: standing(policy, objectives, selection).place for policy in objectives}

    for rank, policy in enumerate(order):
        worst = rank >= len(order) - best
        assert places[policy] is (Place.BEST if rank < best else Place.WORST if worst else Place.MIDDLE)
    assert all(places[policy] is Place.UNRANKED for policy in objectives if policy not in order)


@given(NUMBERS, NUMBERS)
def test_the_relative_gap_is_the_same_for_costs_as_for_rewards(one: float, other: float) -> None:
    assert relative_gap(one, other) == relative_gap(-one, -other) == relative_gap(other, one)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_the_relative_gap_is_the_same_in_every_unit(one: float, other: float, unit: float) -> None:
    assume(max(abs(one), abs(other)) > 1e-6)

    assert relative_gap(unit * one, unit * other) == pytest.approx(relative_gap(one, other), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("worse", "better", "gap"),
    [(80, 100, 0.2), (-100, -80, 0.2), (0, 5, 1), (-5, 0, 1), (-100, 100, 2), (0, 0, 0), (3, 3, 0)],
)
def test_the_relative_gap_is_a_share_of_the_larger_one(worse: float, better: float, gap: float) -> None:
    assert relative_gap(worse, better) == pytest.approx(gap)


def test_with_negative_objectives_the_one_that_lost_less_is_the_parent() -> None:
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


def test_only_those_of_the_best_that_are_ahead_are_parents() -> None:
    objectives: dict[int, float | None] = {0: 100.0, 1: 61.0, 2: 60.5, 3: 60.0}

    assert standing(3, objectives, EAGER).parents == (0,)


def test_policies_without_enough_episodes_take_no_part() -> None:
    objectives: dict[int, float | None] = {0: 1.0, 1: None, 2: 50.0, 3: math.nan}

    assert ranked(objectives) == [2, 0]
    assert standing(1, objectives, EAGER).place is Place.UNRANKED
    assert standing(3, objectives, EAGER).place is Place.UNRANKED
    assert standing(7, objectives, EAGER).place is Place.UNRANKED
    assert standing(0, objectives, EAGER).parents == (2,)
    assert standing(2, {2: 50.0, 0: None}, EAGER).place is Place.BEST


def test_of_equal_ones_the_lower_number_is_the_better() -> None:
    objectives: dict[int, float | None] = {3: 5.0, 1: 5.0, 2: 5.0, 0: 5.0}

    assert ranked(objectives) == [0, 1, 2, 3]
    assert best_of(objectives, EAGER) == [0, 1]
