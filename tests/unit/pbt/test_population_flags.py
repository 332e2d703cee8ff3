"""Which flags a population mutates, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest

from sfactory.config.field import How
from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import Hyperparameter, hyperparameters, mutable_flags
from sfactory.config.population_rules import best_count
from sfactory.config.schema import Config
from sfactory.config.validation import check
from tests.support.broken_settings import MUTATED, POPULATION
from tests.support.source import ROOT


def config(**values: Any) -> Config:
    return config_of({"env": "CartPole-v1", **POPULATION, **values})


def problems(**values: Any) -> list[str]:
    """All problems with these settings."""
    return check(config_of({"env": "CartPole-v1", **values}), chosen=values)


def names(**values: Any) -> list[str]:
    return [each.name for each in hyperparameters(config(**values))]


def test_sample_factorys_hyperparameters_are_mutated_by_default() -> None:
    assert names() == list(MUTATED)
    assert {*names(pbt_optimize_gamma=True, pbt_optimize_batch_size=True)} == {*MUTATED, "gamma", "batch_size"}
    assert names(with_pbt=False, pbt_optimize_gamma=True, pbt_hyperparameters={"adam_eps": {}}) == []
    # The range of the batch size is relative to its start.
    declared = hyperparameters(config(pbt_optimize_batch_size=True, batch_size=2048))
    assert Hyperparameter("batch_size", 512, 8192, How.DOUBLE, True, 2048) in declared


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"exploration_loss_coeff": 0.0}, "exploration_loss_coeff"),
        ({"exploration_loss": "none"}, "exploration_loss_coeff"),
        ({"exploration_loss_coeff_schedule": "0:0.1,1000:0"}, "exploration_loss_coeff"),
        ({"policy_loss": "pg"}, "ppo_clip_ratio"),
        ({"lr_schedule": "kl_adaptive_epoch"}, "learning_rate"),
        ({"lr_schedule": "0:1e-3,1000:0"}, "learning_rate"),
        ({"pbt_hyperparameters": {"ppo_clip_value": None}}, "ppo_clip_value"),
    ],
)
def test_flags_that_are_off_or_excluded_are_not_mutated(values: dict[str, Any], gone: str) -> None:
    assert names(**values) == [name for name in MUTATED if name != gone]


def test_wish_adds_a_flag_or_changes_its_mutation() -> None:
    wishes = {
        "adam_beta1": {},
        "vtrace_rho": {"min": 0.5},
        "learning_rate": {"min": 1e-5, "max": 1e-3, "how": "log_uniform"},
        "num_epochs": {"max": 4},
    }

    declared = {each.name: each for each in hyperparameters(config(pbt_hyperparameters=wishes))}

    assert declared.keys() == {*MUTATED, *wishes}
    assert [declared[name] for name in wishes] == [
        Hyperparameter("adam_beta1", 0.5, 0.999, How.ONE_MINUS, False, 0.9),
        Hyperparameter("vtrace_rho", 0.5, 10.0, How.FACTOR, False, 1.0),
        Hyperparameter("learning_rate", 1e-5, 1e-3, How.LOG_UNIFORM, False, 1e-4),
        Hyperparameter("num_epochs", 1, 4, How.FACTOR, True, 1),
    ]
    assert problems(**POPULATION, pbt_hyperparameters=wishes) == []


@pytest.mark.parametrize(
    ("flag", "settings"), [("gae_lambda", {"rnd": True}), ("vtrace_pg_rho", {"policy_loss": "pg"})]
)
def test_wish_for_a_flag_is_granted_in_all_settings_that_read_it(flag: str, settings: dict[str, Any]) -> None:
    wished = {**settings, "pbt_hyperparameters": {flag: {}}}

    assert problems(**POPULATION, **wished) == []
    assert flag in names(**wished)


def test_wish_of_a_saved_run_that_has_no_effect_is_passed_over() -> None:
    wished: dict[str, Any] = {"pbt_hyperparameters": {"vtrace_pg_rho": {}}}

    assert check(config(**wished), chosen=()) == []
    assert "vtrace_pg_rho" not in names(**wished)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"learning_rat": {}}, "did you mean learning_rate?"),
        ({"lr": {}}, "here it is learning_rate"),
        ({"optimizer": {}}, "optimizer: is no"),
        ({"rollout": {"min": 8}}, "rollout: cannot change"),
        ({"learning_rate": {"low": 1}}, "learning_rate: must be null or an object"),
        ({"learning_rate": {"min": "1e-5"}}, "must be finite numbers"),
        ({"learning_rate": {"max": 10**400}}, "must be finite numbers"),
        ({"learning_rate": {"how": "double"}}, "factor, one_minus, uniform, log_uniform"),
        ({"learning_rate": {"min": 1, "max": 0.5}}, "must be less than"),
        ({"exploration_loss_coeff": {"min": 0}}, "must be greater than 0"),
        ({"gamma": {"max": 1.0}}, "less than 1"),
        ({"learning_rate": {"min": 0, "how": "uniform"}}, "must be greater than 0"),
        ({"learning_rate": {"min": 1e-3}}, "0.0001"),
        ({"gae_lambda": {}}, "--with_vtrace=False"),
        ({"vtrace_pg_rho": {}}, "--vtrace_adv_weighting=rho"),
    ],
)
def test_invalid_wish_is_refused(wishes: dict[str, Any], words: str) -> None:
    (problem,) = problems(**POPULATION, pbt_hyperparameters=wishes)

    assert problem.startswith("--pbt_hyperparameters=")
    assert words in problem


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"vtrace_c": None, "pbt_hyperparameters": {"vtrace_c": {}}}, "vtrace_c: is none"),
        ({"pbt_replace_fraction": 0.8}, "use 0.75 or less"),
        ({"with_pbt": False, "num_policies": 3, "train_policies": (0, 3, 5)}, "no policy 3 or 5"),
        ({"learning_rate": 0.5}, '--pbt_hyperparameters=\'{"learning_rate": {"max": 5}}\''),
    ],
)
def test_settings_that_do_not_suit_a_population_are_refused(values: dict[str, Any], words: str) -> None:
    (problem,) = problems(**{**POPULATION, **values})

    assert words in problem


@pytest.mark.parametrize(
    "values",
    [
        POPULATION,
        {"num_policies": 2, "with_pbt": True, "serial_mode": True, "num_workers": 1},
        {**POPULATION, "train_policies": (1, 3), "pbt_replace_fraction": 0.5},
        {**POPULATION, "pbt_mutation_rate": 0.0, "pbt_replace_reward_gap": 0.0},
        {**POPULATION, "learning_rate": 0.5, "pbt_hyperparameters": {"learning_rate": {"max": 5}}},
        {"num_policies": 2, "policy_mapping": "my_envs.mapping:choose_policy", "policy_mapping_episodes": 1},
        {"train_policies": (0,)},
    ],
)
def test_valid_settings_pass(values: dict[str, Any]) -> None:
    assert problems(**values) == []


@pytest.mark.parametrize(
    ("fraction", "policies", "best"),
    [(0.3, 4, 2), (0.3, 10, 3), (0.07, 100, 7), (0.5, 2, 1), (0.01, 8, 1), (0.3, 0, 0)],
)
def test_fraction_of_policies_is_rounded_up(fraction: float, policies: int, best: int) -> None:
    assert best_count(fraction, policies) == best


def test_documentation_lists_every_mutable_flag_with_its_range() -> None:
    text = (ROOT / "docs" / "populations.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]

    for name, mutable in mutable_flags().items():
        bounds = f"{mutable.low:g} to {mutable.high:g}" + (" times its start" if mutable.relative else "")
        switch = f"`{mutable.on}`" if mutable.on else "`pbt_hyperparameters`"
        assert f"| `{name}` | {bounds} | {mutable.how} | {switch} |" in rows
    assert len(rows) >= len(mutable_flags())
