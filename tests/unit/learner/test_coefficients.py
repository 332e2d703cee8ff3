"""What changes over training changes as its schedule says, in every policy by itself, and goes on after a resume."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.coefficients import Coefficients, standing_still
from sfactory.learner.gradient_step import Rates
from sfactory.learner.trainer import Trainer
from tests.support.models import model_of
from tests.support.parts import random_batch, tiny_model, trainer_for

POINTS = "0:0.5,1000:0.25,3000:0.0"
# (env steps, value): at every point, between points, and behind the last.
ON_THE_WAY = [(0, 0.5), (500, 0.375), (1000, 0.25), (1500, 0.1875), (2000, 0.125), (3000, 0.0), (10**9, 0.0)]


def coefficients_of(optim: dict[str, Any] | None = None, algo: dict[str, Any] | None = None) -> Coefficients:
    return Coefficients(OptimConfig(**(optim or {})), AlgoConfig(**(algo or {})), total_env_steps=1000)


@pytest.mark.parametrize(("env_steps", "expected"), ON_THE_WAY)
def test_the_rate_follows_its_points_exactly(env_steps: int, expected: float) -> None:
    coefficients = coefficients_of({"lr_schedule": POINTS, "learning_rate": 7.0})

    coefficients.at(env_steps)

    assert coefficients.rates == Rates(expected, None)


@pytest.mark.parametrize(("env_steps", "expected"), ON_THE_WAY)
def test_the_critics_rate_follows_points_of_its_own(env_steps: int, expected: float) -> None:
    fields = {"separate_value_optimizer": True, "value_lr_schedule": POINTS, "learning_rate": 0.125, "value_lr": 7.0}
    coefficients = coefficients_of(fields)

    coefficients.at(env_steps)

    assert coefficients.rates == Rates(0.125, expected)


def test_without_points_the_critics_rate_is_constant_whatever_the_policys_does() -> None:
    fields = {"separate_value_optimizer": True, "value_lr": 0.25, "lr_schedule": "linear_decay", "learning_rate": 0.5}
    coefficients = coefficients_of(fields)
    assert coefficients.rates == Rates(0.5, 0.25)

    coefficients.at(500)

    assert coefficients.rates == Rates(0.25, 0.25)


@pytest.mark.parametrize(("env_steps", "expected"), ON_THE_WAY)
def test_exploration_follows_its_points_exactly(env_steps: int, expected: float) -> None:
    coefficients = coefficients_of(
        algo={"exploration_loss_coeff_schedule": POINTS, "exploration_loss_coeff": 7.0},
    )

    coefficients.at(env_steps)

    assert coefficients.exploration == expected


def test_what_has_no_schedule_is_constant() -> None:
    algo = {"exploration_loss_coeff": 0.125, "kl_loss_coeff": 0.25}
    coefficients = coefficients_of({"learning_rate": 0.5}, algo)

    coefficients.at(10**9)
    coefficients.after_dataset(100.0)

    assert (coefficients.rates, coefficients.exploration, coefficients.kl) == (Rates(0.5, None), 0.125, 0.25)
    assert (coefficients.looks_at_updates, coefficients.looks_at_datasets) == (False, False)


def test_a_schedule_is_in_force_before_any_step() -> None:
    coefficients = coefficients_of({"lr_schedule": POINTS}, {"exploration_loss_coeff_schedule": "0:0.75"})

    assert (coefficients.rates.policy, coefficients.exploration) == (0.5, 0.75)


@pytest.mark.parametrize("separate", [False, True])
def test_the_optimizer_steps_with_the_scheduled_rate_at_every_step(separate: bool) -> None:
    optim = OptimConfig(
        lr_schedule=POINTS, value_lr_schedule="0:0.25,3000:0.125", separate_value_optimizer=separate, max_grad_norm=0.1
    )
    model = model_of(actor_critic_share_weights=False)
    trainer = trainer_for(model, AlgoConfig(), optim, LearnerConfig())
    seen: list[tuple[float, ...]] = []

    def watch(*_: object) -> None:
        """Called after a step of either optimiser."""
        groups = [*trainer.updater.optimizer.param_groups]
        if trainer.updater.value_optimizer is not None:
            groups += trainer.updater.value_optimizer.param_groups
        seen.append(tuple(group["lr"] for group in groups))

    remove = register_optimizer_step_post_hook(watch).remove
    try:
        for env_steps in (0, 500, 3000):
            trainer.coefficients.at(env_steps)
            trainer.train(random_batch(model))
    finally:
        remove()

    # Two optimisers step one after the other: the last look is at both.
    per_step = seen[1::2] if separate else seen
    values = [(0.25,), (0.25 - 0.125 / 6,), (0.125,)] if separate else [()] * 3
    expected = [(rate, *value) for rate, value in zip((0.5, 0.375, 0.0), values, strict=True)]
    assert [pytest.approx(wanted) for wanted in expected] == per_step


def test_two_policies_are_each_where_their_own_steps_have_led_them() -> None:
    optim = OptimConfig(lr_schedule=POINTS)
    first, second = (trainer_for(tiny_model(), optim=optim, policy=policy) for policy in (0, 1))

    first.coefficients.at(1000)
    second.coefficients.at(2000)
    for trainer in (first, second):
        trainer.train(random_batch(trainer.model))

    assert [rate_in_use(trainer) for trainer in (first, second)] == [0.25, 0.125]


def rate_in_use(trainer: Trainer) -> float:
    return float(trainer.updater.optimizer.param_groups[0]["lr"])


def test_after_a_resume_points_are_followed_as_if_there_had_been_no_break() -> None:
    fields = {"lr_schedule": POINTS, "value_lr_schedule": POINTS, "separate_value_optimizer": True}
    algo = {"exploration_loss_coeff_schedule": POINTS}
    unbroken, resumed = coefficients_of(fields, algo), coefficients_of(fields, algo)
    unbroken.at(500)

    resumed.restore(copy.deepcopy(unbroken.state()))

    for env_steps in (700, 1000, 1300):
        for one in (unbroken, resumed):
            one.at(env_steps)
        assert (resumed.rates, resumed.exploration) == (unbroken.rates, unbroken.exploration)


@pytest.mark.parametrize(
    ("kls", "expected"),
    [((0.021,), 0.3), ((0.02, 0.01, 0.005), 0.2), ((0.004, 0.004), 0.05), ((0.021, 0.004, float("nan")), 0.15)],
)
def test_the_penalty_adapts_to_the_divergence_of_datasets(kls: tuple[float, ...], expected: float) -> None:
    coefficients = coefficients_of(algo={"kl_loss_coeff": 0.2, "kl_target": 0.01})
    assert (coefficients.kl, coefficients.looks_at_datasets) == (0.2, True)

    for kl in kls:
        coefficients.after_dataset(kl)

    assert coefficients.kl == pytest.approx(expected)


def test_a_penalty_that_adapts_begins_within_its_bounds() -> None:
    assert coefficients_of(algo={"kl_loss_coeff": 0.0, "kl_target": 0.01}).kl == 1e-4
    assert coefficients_of(algo={"kl_loss_coeff": 1e3, "kl_target": 0.01}).kl == 1e2


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"kl_loss_coeff": 0.2, "kl_target": 0.01}, {"kl_loss_coeff": 0.2, "kl_target": 0.01}, 0.45),
        ({"kl_loss_coeff": 0.2, "kl_target": 0.01}, {"kl_loss_coeff": 0.2, "kl_target": 0.02}, 0.45),
        ({"kl_loss_coeff": 0.2, "kl_target": 0.01}, {"kl_loss_coeff": 0.8, "kl_target": 0.01}, 0.8),
        ({"kl_loss_coeff": 0.2, "kl_target": 0.01}, {"kl_loss_coeff": 0.2, "kl_target": 0.0}, 0.2),
        ({"kl_loss_coeff": 0.2, "kl_target": 0.0}, {"kl_loss_coeff": 0.2, "kl_target": 0.01}, 0.2),
    ],
)
def test_a_resumed_penalty_goes_on_unless_another_start_is_wanted(
    before: dict[str, float], now: dict[str, float], expected: float
) -> None:
    first, resumed = coefficients_of(algo=before), coefficients_of(algo=now)
    for _ in range(2):
        first.after_dataset(1.0)

    resumed.restore(copy.deepcopy(first.state()))

    assert resumed.kl == pytest.approx(expected)


def test_a_state_that_knows_only_the_rate_leaves_the_rest_at_its_start() -> None:
    resumed = coefficients_of({"lr_schedule": "kl_adaptive_epoch", "learning_rate": 1e-3}, {"kl_target": 0.01})

    resumed.restore({"learning_rate": {"schedule": "kl_adaptive_epoch", "initial": 1e-3, "value": 2e-3}})

    assert (resumed.rates.policy, resumed.kl) == (2e-3, 1e-4)


def test_states_are_plain_values() -> None:
    state = coefficients_of(algo={"kl_target": 0.01}).state()

    assert {type(value) for part in state.values() for value in part.values()} <= {str, float, bool}


def test_updates_that_stand_still_have_no_rate_of_any_kind() -> None:
    optim = OptimConfig(
        lr_schedule=POINTS, value_lr_schedule=POINTS, value_lr=1.0, separate_value_optimizer=True, optimizer="rmsprop"
    )

    still = Coefficients(standing_still(optim), AlgoConfig(), total_env_steps=1000)
    still.at(500)

    assert still.rates == Rates(0.0, 0.0)
    assert standing_still(optim).optimizer == "rmsprop"
