"""Ranking of policies: best, worst, and which may replace which; the statistic that they are ranked by."""

from __future__ import annotations

import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactory.config.population_rules import best_count
from sfactory.config.schema import PopulationConfig
from sfactory.errors import ExitCode, SFactoryError
from sfactory.experiment.resume import ResumedPolicy
from sfactory.pbt.ranking import Place, best_of, ranked, ranking_metric, relative_gap, standing
from sfactory.report.policy_stats import PolicyStats


def selected(fraction: float, gap: float, gap_absolute: float) -> PopulationConfig:
    return PopulationConfig(
        pbt_replace_fraction=fraction, pbt_replace_reward_gap=gap, pbt_replace_reward_gap_absolute=gap_absolute
    )


NUMBERS = st.floats(-1e9, 1e9, allow_subnormal=False)
OBJECTIVES = st.dictionaries(st.integers(0, 63), NUMBERS | st.none(), min_size=1, max_size=12)
SELECTIONS = st.builds(
    selected, st.floats(0, 1, exclude_min=True, exclude_max=True), st.floats(0, 1, exclude_max=True), st.floats(0, 1e6)
)
EAGER = selected(0.3, 0.1, 1e-6)


@given(OBJECTIVES, SELECTIONS)
def test_places_follow_from_the_order_and_parents_are_all_that_are_better_by_both_gaps(
    objectives: dict[int, float | None], options: PopulationConfig
) -> None:
    order = ranked(objectives)
    best = best_count(options.pbt_replace_fraction, len(order))

    for policy, own in objectives.items():
        found = standing(policy, objectives, options)
        if policy not in order:
            assert found.place is Place.UNRANKED
            continue
        rank = order.index(policy)
        worst = rank >= len(order) - best
        assert found.place is (Place.BEST if rank < best else Place.WORST if worst else Place.MIDDLE)
        leads = [(parent, objectives[parent] or 0.0, own or 0.0) for parent in order[:best]]
        assert found.parents == tuple(
            parent
            for parent, other, low in leads
            if found.place is Place.WORST
            and other - low > options.pbt_replace_reward_gap_absolute
            and relative_gap(other, low) > options.pbt_replace_reward_gap
        )


@pytest.mark.parametrize(
    ("worse", "better", "gap"),
    [(80, 100, 0.2), (-100, -80, 0.2), (0, 5, 1), (-5, 0, 1), (-100, 100, 2), (0, 0, 0), (3, 3, 0), (8e-9, 1e-8, 0.2)],
)
def test_relative_gap_is_relative_to_the_larger_value(worse: float, better: float, gap: float) -> None:
    assert relative_gap(worse, better) == relative_gap(-better, -worse) == pytest.approx(gap)


@pytest.mark.parametrize(
    ("objectives", "order", "parents"),
    [
        ({0: -200.0, 1: -100.0, 2: -150.0, 3: -1000.0}, [1, 2, 0, 3], {3: (1, 2), 0: (1, 2), 1: ()}),
        ({0: 1.0, 1: None, 2: 50.0, 3: math.nan}, [2, 0], {0: (2,), 1: (), 3: (), 7: ()}),
        ({3: 5.0, 1: 5.0, 2: 5.0, 0: 5.0}, [0, 1, 2, 3], {3: ()}),
        ({0: 100.0, 1: 61.0, 2: 60.5, 3: 60.0}, [0, 1, 2, 3], {3: (0,)}),  # policy 1 is among the best, but near
    ],
    ids=["negative", "without objective", "ties", "near"],
)
def test_policies_are_ranked_by_their_objectives(
    objectives: dict[int, float | None], order: list[int], parents: dict[int, tuple[int, ...]]
) -> None:
    assert ranked(objectives) == order
    assert best_of(objectives, EAGER) == order[: best_count(0.3, len(order))]
    assert {policy: standing(policy, objectives, EAGER).parents for policy in parents} == parents


@pytest.mark.parametrize(
    ("metric", "episodes", "reported", "name"),
    [
        ("reward", 0, [], "reward"),
        ("length", 0, [], "length"),
        ("kills", 99, ["deaths", "kills"], "kills"),
        ("true_objective", 500, ["deaths", "true_objective"], "true_objective"),
        ("true_objective", 104, ["kills", "deaths"], "reward"),
        ("kills", 99, ["deaths"], None),  # too few episodes
    ],
)
def test_metric_is_the_named_one_or_the_reward_for_want_of_a_true_objective(
    metric: str, episodes: int, reported: list[str], name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert ranking_metric(metric, 100, episodes, reported) == name

    assert ("none of the first 104 episodes" in caplog.text) == (name not in (metric, None))


def test_metric_that_no_episode_reports_is_refused() -> None:
    missing = "pbt_target_objective=kils: none of the first 104 .*length, deaths, kills"

    with pytest.raises(SFactoryError, match=missing) as caught:
        ranking_metric("kils", 100, 104, ["kills", "deaths"])

    assert caught.value.exit_code is ExitCode.FAULTS


def test_policy_without_true_objective_is_not_ranked_by_its_returns() -> None:
    reporting, silent = PolicyStats(2, "reward", ResumedPolicy()), PolicyStats(2, "reward", ResumedPolicy())
    for stats in (reporting, silent):
        stats.episodes.add([200.0, 200.0], [10, 10])
    reporting.extras.add("true_objective", [0.5, 1.0])

    assert (reporting.full_mean("true_objective"), silent.full_mean("true_objective")) == (0.75, None)
    assert reporting.full_mean("reward") == silent.full_mean("reward") == 200.0
