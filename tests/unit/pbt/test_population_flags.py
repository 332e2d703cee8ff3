"""Which flags a population mutates, and what is said of settings that do not suit one."""

from __future__ import annotations

from typing import Any

import pytest

from sfactory.config.field import How
from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import Hyperparameter, hyperparameters, is_number, mutable_flags
from sfactory.config.population_rules import best_count, learning_policies
from sfactory.config.schema import Config
from sfactory.config.validation import check
from tests.support.broken_settings import MUTATED, POPULATION
from tests.support.command_line import PLAIN_ENV, read
from tests.support.source import ROOT


def config(**values: Any) -> Config:
    return config_of({"env": "CartPole-v1", **POPULATION, **values})


def problems(**values: Any) -> list[str]:
    """What is wrong with a population."""
    return check(config_of({"env": "CartPole-v1", **values}), chosen=values)


def wished(**wishes: Any) -> list[str]:
    return problems(**POPULATION, pbt_hyperparameters=wishes)


def names(**values: Any) -> list[str]:
    return [each.name for each in hyperparameters(config(**values))]


def found(name: str, **values: Any) -> Hyperparameter:
    (result,) = [each for each in hyperparameters(config(**values)) if each.name == name]
    return result


def test_what_is_mutated_is_what_the_ancestor_mutates() -> None:
    assert names() == list(MUTATED)
    assert {*names(pbt_optimize_gamma=True)} == {*MUTATED, "gamma"}
    assert {*names(pbt_optimize_batch_size=True)} == {*MUTATED, "batch_size"}


def test_without_a_population_nothing_is_mutated() -> None:
    assert names(with_pbt=False, pbt_optimize_gamma=True, pbt_hyperparameters={"adam_eps": {}}) == []


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
def test_what_is_off_has_no_effect_or_is_to_be_left_alone_is_not_mutated(values: dict[str, Any], gone: str) -> None:
    assert names(**values) == [name for name in MUTATED if name != gone]


def test_a_wish_adds_a_flag_or_changes_how_one_is_mutated() -> None:
    wishes = {
        "adam_beta1": {},
        "vtrace_rho": {"min": 0.5},
        "learning_rate": {"min": 1e-5, "max": 1e-3, "how": "log_uniform"},
        "num_epochs": {"max": 4},
    }

    assert {*names(pbt_hyperparameters=wishes)} == {*MUTATED, *wishes}
    assert found("adam_beta1", pbt_hyperparameters=wishes) == Hyperparameter(
        "adam_beta1", 0.5, 0.999, How.ONE_MINUS, False, 0.9
    )
    assert found("vtrace_rho", pbt_hyperparameters=wishes) == Hyperparameter(
        "vtrace_rho", 0.5, 10.0, How.FACTOR, False, 1.0
    )
    assert found("learning_rate", pbt_hyperparameters=wishes) == Hyperparameter(
        "learning_rate", 1e-5, 1e-3, How.LOG_UNIFORM, False, 1e-4
    )
    assert found("num_epochs", pbt_hyperparameters=wishes) == Hyperparameter("num_epochs", 1, 4, How.FACTOR, True, 1)
    assert wished(**wishes) == []


def test_the_range_of_the_batch_size_follows_from_where_it_begins() -> None:
    mutated = found("batch_size", pbt_optimize_batch_size=True, batch_size=2048)

    assert (mutated.low, mutated.high, mutated.how, mutated.whole) == (512, 8192, How.DOUBLE, True)


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"learning_rat": {}}, "learning_rat: is no flag; did you mean learning_rate?"),
        ({"lr": {}}, "lr: is RLlib's name; here it is learning_rate"),
        ({"optimizer": {}}, f"optimizer: is no number; what can be mutated: {', '.join(mutable_flags())}"),
        (
            {"rollout": {"min": 8}},
            f"rollout: cannot change while a run goes on; what can be mutated: {', '.join(mutable_flags())}",
        ),
        (
            {"learning_rate": [1, 2]},
            'learning_rate: must be null or an object with "min", "max" and "how", all of which may be left out',
        ),
        (
            {"learning_rate": {"low": 1}},
            'learning_rate: must be null or an object with "min", "max" and "how", all of which may be left out',
        ),
        ({"learning_rate": {"min": "1e-5"}}, 'learning_rate: "min" and "max" must be finite numbers'),
        ({"learning_rate": {"max": True}}, 'learning_rate: "min" and "max" must be finite numbers'),
        ({"learning_rate": {"max": 10**400}}, 'learning_rate: "min" and "max" must be finite numbers'),
        (
            {"learning_rate": {"how": "double"}},
            'learning_rate: "how" must be one of factor, one_minus, uniform, log_uniform',
        ),
        ({"num_epochs": {"how": "one_minus"}}, 'num_epochs: "how" must be one of factor, double, uniform, log_uniform'),
        ({"learning_rate": {"min": 1, "max": 0.5}}, 'learning_rate: "min" (1) must be less than "max" (0.5)'),
        (
            {"exploration_loss_coeff": {"min": 0}},
            'exploration_loss_coeff: "min" must be greater than 0, since "how" is factor',
        ),
        (
            {"gamma": {"max": 1.0}},
            'gamma: "min" and "max" must be at least 0 and less than 1, since "how" is one_minus',
        ),
        (
            {"learning_rate": {"min": 0, "how": "uniform"}},
            "learning_rate: 0 is no value of --learning_rate, which must be greater than 0",
        ),
        (
            {"learning_rate": {"min": 1e-3}},
            "learning_rate: its value, 0.0001, lies outside of 0.001 to 0.1: give it one within, or widen the range",
        ),
        ({"gae_lambda": {}}, "gae_lambda: has no effect as it is: needs --with_vtrace=False"),
        (
            {"kl_loss_coeff": {}},
            "kl_loss_coeff: its value, 0, lies outside of 0.0001 to 100: give it one within, or widen the range",
        ),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_what_would_be_right(wishes: dict[str, Any], expected: str) -> None:
    (problem,) = wished(**wishes)

    assert problem.startswith("--pbt_hyperparameters=")
    assert problem.endswith(f": {expected}")


def test_a_clip_that_is_off_cannot_be_mutated() -> None:
    (problem,) = problems(**POPULATION, vtrace_c=None, pbt_hyperparameters={"vtrace_c": {}})

    assert problem.endswith("vtrace_c: is none, so there is nothing to mutate")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"with_pbt": True},
            "--with_pbt=True: a population has two policies that learn or more, and here is 1: use --num_policies=4, "
            "or leave it out",
        ),
        (
            {**POPULATION, "train_policies": (2,)},
            "--with_pbt=True: a population has two policies that learn or more, and here is 1: use --train_policies=, "
            "so that all of them learn, or leave it out",
        ),
        (
            {**POPULATION, "pbt_replace_fraction": 0.8},
            "--pbt_replace_fraction=0.8: rounded up, that is all of the 4 policies, so that none could be replaced: "
            "use 0.75 or less",
        ),
        (
            {**POPULATION, "pbt_replace_fraction": 0.0},
            "--pbt_replace_fraction=0.0: must be greater than 0 (accepted: greater than 0 and less than 1)",
        ),
        (
            {**POPULATION, "pbt_replace_fraction": 1.0},
            "--pbt_replace_fraction=1.0: must be less than 1 (accepted: greater than 0 and less than 1)",
        ),
        (
            {**POPULATION, "pbt_mutation_rate": 1.5},
            "--pbt_mutation_rate=1.5: must be at most 1 (accepted: at least 0 and at most 1)",
        ),
        (
            {**POPULATION, "pbt_replace_reward_gap": 1.0},
            "--pbt_replace_reward_gap=1.0: must be less than 1 (accepted: at least 0 and less than 1)",
        ),
        (
            {**POPULATION, "pbt_perturb_min": 1.0},
            "--pbt_perturb_min=1.0: must be greater than 1 (accepted: greater than 1 and at most 100)",
        ),
        (
            {**POPULATION, "pbt_perturb_min": 1.6},
            "--pbt_perturb_min=1.6: must be at most pbt_perturb_max (1.5)",
        ),
        (
            {"num_policies": 3, "train_policies": (0, 3, 5)},
            "--train_policies 0 3 5: there is no policy 3 or 5: there are policies 0 to 2 (--num_policies=3)",
        ),
        (
            {"num_policies": 3, "train_policies": (1, 1)},
            "--train_policies 1 1: policy 1 stands there more than once: name each policy once",
        ),
        (
            {"num_policies": 2, "policy_mapping": "agents"},
            "--policy_mapping=agents: must be one of auto, split, env, agent, or module:function, for example "
            "--policy_mapping=my_envs:who_plays",
        ),
        (
            {**POPULATION, "learning_rate": 0.5},
            "--learning_rate=0.5: population-based training mutates it within 1e-07 and 0.1, where it must begin; "
            'choose a value between them, or another range: --pbt_hyperparameters=\'{"learning_rate": {"max": 5}}\'',
        ),
    ],
)
def test_settings_that_do_not_suit_a_population_are_refused_with_what_would(
    values: dict[str, Any], expected: str
) -> None:
    assert problems(**values) == [expected]


@pytest.mark.parametrize(
    "values",
    [
        POPULATION,
        {"num_policies": 2, "with_pbt": True, "serial_mode": True, "num_workers": 1},
        {**POPULATION, "train_policies": (1, 3), "pbt_replace_fraction": 0.5},
        {**POPULATION, "pbt_replace_fraction": 0.75},
        {**POPULATION, "pbt_mutation_rate": 0.0, "pbt_replace_reward_gap": 0.0},
        {**POPULATION, "learning_rate": 0.5, "pbt_hyperparameters": {"learning_rate": {"max": 5}}},
        {"num_policies": 2, "policy_mapping": "my_envs.mapping:who_plays", "policy_mapping_episodes": 1},
        {"num_policies": 2, "pbt_mix_policies_in_one_env": False},
        {"train_policies": (0,)},
    ],
)
def test_what_suits_a_population_passes(values: dict[str, Any]) -> None:
    assert problems(**values) == []


def test_the_default_of_every_flag_that_may_be_mutated_lies_in_its_range_or_is_off() -> None:
    outside = [
        name
        for name, mutable in mutable_flags().items()
        if not mutable.relative and (value := _default(name)) != 0 and not mutable.low <= value <= mutable.high
    ]

    assert outside == []


def _default(name: str) -> float:
    config = config_of({})
    (value,) = [getattr(part, name) for part in (config.algo, config.optim, config.learner) if hasattr(part, name)]
    assert is_number(value)
    return float(value)


def test_flags_of_a_population_are_read_from_the_command_line() -> None:
    flags = "--num_policies=4", "--with_pbt=True", "--train_policies", "0", "1", "2", "--pbt_start_mutation=2e6"

    assert learning_policies(read(PLAIN_ENV, *flags).config) == (0, 1, 2)
    assert learning_policies(read(PLAIN_ENV).config) == (0,)


@pytest.mark.parametrize(
    ("fraction", "policies", "best"),
    [(0.3, 4, 2), (0.3, 10, 3), (0.07, 100, 7), (0.5, 2, 1), (0.01, 8, 1), (0.3, 0, 0)],
)
def test_a_share_of_the_policies_is_rounded_up_as_it_was_typed(fraction: float, policies: int, best: int) -> None:
    assert best_count(fraction, policies) == best


def test_the_documents_tell_every_flag_that_may_be_mutated_with_its_range() -> None:
    text = (ROOT / "docs" / "populations.md").read_text(encoding="utf-8")
    told = [line for line in text.splitlines() if line.startswith("| `")]

    for name, mutable in mutable_flags().items():
        bounds = f"{mutable.low:g} to {mutable.high:g}" + (" times its start" if mutable.relative else "")
        switch = f"`{mutable.on}`" if mutable.on else "`pbt_hyperparameters`"
        assert f"| `{name}` | {bounds} | {mutable.how} | {switch} |" in told
    assert len(told) >= len(mutable_flags())
