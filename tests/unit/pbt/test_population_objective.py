"""What a population is ranked by is looked for in the first episodes, and told if it is not there."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.messages import EpisodeExtras, EpisodesDone
from sfactory.pbt.ranking import Found, TargetObjective
from sfactory.report.policy_stats import PolicyStats


@pytest.mark.parametrize("metric", ["reward", "length"])
def test_what_every_episode_has_is_known_at_once(metric: str) -> None:
    assert TargetObjective(metric, 100).look(0, []) == Found(metric)


@pytest.mark.parametrize("metric", ["true_objective", "kills"])
def test_an_extra_statistic_is_known_with_the_first_episode_that_reports_it(metric: str) -> None:
    objective = TargetObjective(metric, 100)

    assert objective.look(99, ["deaths"]) is None
    assert objective.look(99, ["deaths", metric]) == Found(metric)
    assert objective.look(500, ["deaths", metric]) == Found(metric)


def test_an_env_without_a_true_objective_is_ranked_by_the_reward_and_that_is_told() -> None:
    found = TargetObjective("true_objective", 100).look(100, ["deaths"])

    assert found == Found(
        "reward",
        "pbt_target_objective=true_objective: none of the first 100 episodes reported it (the env reports reward, "
        "length, deaths); policies are ranked by the reward",
    )


def test_an_objective_that_no_env_reports_is_told_with_what_is_reported() -> None:
    found = TargetObjective("kils", 100).look(104, ["kills", "deaths"])

    assert found == Found(
        None,
        "pbt_target_objective=kils: none of the first 104 episodes reported it; the env reports reward, length, "
        "deaths, kills: name one of these with --pbt_target_objective",
    )


def test_a_policy_whose_envs_tell_no_true_objective_is_not_ranked_by_its_returns() -> None:
    telling, silent = PolicyStats(2, "reward"), PolicyStats(2, "reward")
    for reports in (telling, silent):
        reports.add_episodes(EpisodesDone(0, np.array([200.0, 200.0]), np.array([10, 10])))
    telling.add_extras(EpisodeExtras(0, "true_objective", np.array([0.5, 1.0])))

    assert (telling.full_mean("true_objective"), silent.full_mean("true_objective")) == (0.75, None)
    assert telling.full_mean("reward") == silent.full_mean("reward") == 200.0
