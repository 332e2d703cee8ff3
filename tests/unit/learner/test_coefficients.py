"""Rates and coefficients follow their schedules and divergences, also after a resume."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.coefficients import Coefficients, standing_still
from sfactory.learner.gradient_step import Rates
from sfactory.learner.trainer import Trainer
from sfactory.messages import TrainStats
from tests.support.lone_learner import LoneLearner
from tests.support.models import model_of
from tests.support.parts import evaluate, random_batch, tiny_model, trainer_for

POINTS = "0:0.5,1000:0.25,3000:0.0"
# (env steps, value): at every point, between points, and behind the last.
ON_THE_WAY = [(0, 0.5), (500, 0.375), (1000, 0.25), (1500, 0.1875), (2000, 0.125), (3000, 0.0), (10**9, 0.0)]


def coefficients_of(optim: dict[str, Any] | None = None, algo: dict[str, Any] | None = None) -> Coefficients:
    return Coefficients(OptimConfig(**(optim or {})), AlgoConfig(**(algo or {})), total_env_steps=1000)


def test_values_follow_their_schedules_exactly_from_the_start() -> None:
    decaying = {"separate_value_optimizer": True, "value_lr": 0.25, "lr_schedule": "linear_decay", "learning_rate": 0.5}
    linear = coefficients_of(decaying)
    rate = coefficients_of({"lr_schedule": POINTS, "learning_rate": 7.0})
    critic = {"separate_value_optimizer": True, "value_lr_schedule": POINTS, "learning_rate": 0.125, "value_lr": 7.0}
    value_rate = coefficients_of(critic)
    exploration = coefficients_of(
        algo={"exploration_loss_coeff_schedule": POINTS, "exploration_loss_coeff": 7.0},
    )
    assert (rate.rates.policy, value_rate.rates.value, exploration.exploration) == (0.5, 0.5, 0.5)

    for env_steps, expected in ON_THE_WAY:
        for coefficients in (rate, value_rate, exploration):
            coefficients.at(env_steps)
        assert rate.rates == Rates(expected, None)
        assert value_rate.rates == Rates(0.125, expected)
        assert exploration.exploration == expected
    for env_steps, expected in [(0, 0.5), (250, 0.375), (999, 0.0005), (1000, 0.0), (5000, 0.0)]:
        linear.at(env_steps)
        assert linear.rates == pytest.approx(Rates(expected, 0.25))


def test_what_has_no_schedule_is_constant() -> None:
    algo = {"exploration_loss_coeff": 0.125, "kl_loss_coeff": 0.25}
    coefficients = coefficients_of({"learning_rate": 0.5}, algo)

    coefficients.at(10**9)
    coefficients.after_dataset(100.0)

    assert (coefficients.rates, coefficients.exploration, coefficients.kl) == (Rates(0.5, None), 0.125, 0.25)
    assert (coefficients.looks_at_updates, coefficients.looks_at_datasets) == (False, False)


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
def test_resumed_penalty_continues_unless_its_start_differs(
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


def test_updates_that_stand_still_have_no_rate_of_any_kind() -> None:
    optim = OptimConfig(
        lr_schedule=POINTS, value_lr_schedule=POINTS, value_lr=1.0, separate_value_optimizer=True, optimizer="rmsprop"
    )

    still = Coefficients(standing_still(optim), AlgoConfig(), total_env_steps=1000)
    still.at(500)

    assert still.rates == Rates(0.0, 0.0)
    assert standing_still(optim).optimizer == "rmsprop"


# A rate at which weights do not change: the divergence stays what the batch was made with.
TINY_RATE = 1e-12
THRESHOLD = 0.008


def adaptive(schedule: str, **fields: Any) -> OptimConfig:
    settings = {"learning_rate": TINY_RATE, "lr_adaptive_min": 1e-20, "lr_adaptive_max": 1.0, **fields}
    return OptimConfig(lr_schedule=schedule, lr_schedule_kl_threshold=THRESHOLD, **settings)


def trainer_of(optim: OptimConfig, batches: int = 1, epochs: int = 1, seed: int = 0) -> Trainer:
    learner = LearnerConfig(num_batches_per_epoch=batches, num_epochs=epochs, early_stop_loss_change=0.0)
    return trainer_for(tiny_model(seed), AlgoConfig(), optim, learner, total_env_steps=1000)


def batch_with_divergences(trainer: Trainer, *divergences: float) -> Batch:
    """A batch of two rows for each of these divergences of the present policy from the one that acted."""
    rows = 2 * len(divergences)
    batch = random_batch(trainer.model, rows=rows)
    with torch.no_grad():
        obs, actions = batch.obs["obs"][:-1].flatten(0, 1), batch.actions["action"].flatten()
        log_prob = evaluate(trainer.model, {"obs": obs}, {"action": actions}).log_prob.view(5, rows)
    shifts = torch.tensor([_shift_of(divergence) for divergence in divergences]).repeat_interleave(2)
    return dataclasses.replace(batch, behavior_log_prob=log_prob - shifts)


def _shift_of(divergence: float) -> float:
    """The x > 0 with e^x - 1 - x = ``divergence``."""
    low, high = 0.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.expm1(middle) - middle < divergence else (low, middle)
    return low


def rate_in_use(trainer: Trainer) -> float:
    """What the last step was made with."""
    return float(trainer.updater.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(("frameskip", "limit"), [(1, {"train_for_env_steps": 100}), (4, {"train_for_frames": 400})])
def test_a_learner_decays_its_rate_by_the_env_steps_it_has_learned_from(frameskip: int, limit: dict[str, Any]) -> None:
    learner = LoneLearner(
        **limit, learning_rate=0.5, lr_schedule="linear_decay", env_frameskip=frameskip, with_tensorboard=False
    )
    rates = []
    for _ in range(5):
        learner.learn()
        learner.learning.report()
        rates += [stats.learning_rate for stats in learner.messages(TrainStats)]

    # 20 of 100 steps are learned from in each dataset; a rate is that of the steps before its update.
    assert rates == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])
    assert learner.learning.over


@pytest.mark.parametrize(("schedule", "changes"), [("kl_adaptive_minibatch", 6), ("kl_adaptive_epoch", 3)])
@pytest.mark.parametrize(
    ("divergence", "factor"),
    [(2.2 * THRESHOLD, 1 / 1.5), (1.8 * THRESHOLD, 1.0), (0.6 * THRESHOLD, 1.0), (0.4 * THRESHOLD, 1.5), (0.0, 1.5)],
)
def test_the_rate_changes_after_too_large_or_too_small_a_divergence(
    divergence: float, factor: float, schedule: str, changes: int
) -> None:
    trainer = trainer_of(adaptive(schedule), batches=2, epochs=3)

    trainer.train(batch_with_divergences(trainer, divergence, divergence))

    assert trainer.train_step == 6
    assert trainer.coefficients.rates.policy / TINY_RATE == pytest.approx(factor**changes)
    # The last step was made with the rate before the last change.
    assert rate_in_use(trainer) / TINY_RATE == pytest.approx(factor ** (changes - 1))


@pytest.mark.parametrize(("schedule", "factor"), [("kl_adaptive_minibatch", 1 / 1.5), ("kl_adaptive_epoch", 1.0)])
def test_an_epoch_counts_by_the_mean_of_its_minibatches(schedule: str, factor: float) -> None:
    trainer = trainer_of(adaptive(schedule), batches=3)

    # One by one they say down, down, up; their mean of 5 / 3 says nothing.
    trainer.train(batch_with_divergences(trainer, 2.5 * THRESHOLD, 2.5 * THRESHOLD, 0.0))

    assert trainer.coefficients.rates.policy / TINY_RATE == pytest.approx(factor)


@pytest.mark.parametrize("schedule", ["kl_adaptive_minibatch", "kl_adaptive_epoch"])
@pytest.mark.parametrize(("divergence", "bound"), [(0.1, 0.9 * TINY_RATE), (0.0, 1.1 * TINY_RATE)])
def test_an_adaptive_rate_stays_within_its_bounds(schedule: str, divergence: float, bound: float) -> None:
    optim = adaptive(schedule, lr_adaptive_min=0.9 * TINY_RATE, lr_adaptive_max=1.1 * TINY_RATE)
    trainer = trainer_of(optim, epochs=3)

    trainer.train(batch_with_divergences(trainer, divergence))

    assert trainer.coefficients.rates.policy == rate_in_use(trainer) == bound


@pytest.mark.parametrize("schedule", ["kl_adaptive_minibatch", "kl_adaptive_epoch"])
def test_an_update_that_was_skipped_says_nothing_about_the_rate(schedule: str) -> None:
    trainer = trainer_of(adaptive(schedule))
    batch = batch_with_divergences(trainer, 0.1)
    batch.rewards[0, 0] = torch.nan

    trainer.train(batch)

    assert trainer.stats.skipped == 1
    assert trainer.coefficients.rates.policy == TINY_RATE


@pytest.mark.parametrize(
    ("before", "schedule", "wanted", "expected"),
    [
        ("kl_adaptive_minibatch", "kl_adaptive_minibatch", TINY_RATE, TINY_RATE / 1.5),
        ("kl_adaptive_epoch", "kl_adaptive_epoch", TINY_RATE, TINY_RATE / 1.5),
        ("kl_adaptive_epoch", "kl_adaptive_epoch", 0.125, 0.125),
        ("kl_adaptive_minibatch", "kl_adaptive_epoch", TINY_RATE, TINY_RATE),
        ("constant", "kl_adaptive_epoch", TINY_RATE, TINY_RATE),
        ("kl_adaptive_minibatch", "constant", TINY_RATE, TINY_RATE),
        ("kl_adaptive_minibatch", "linear_decay", TINY_RATE, TINY_RATE),
    ],
)
def test_a_resumed_run_takes_the_saved_rate_if_the_same_adaptive_schedule_saved_it_and_no_other_start_is_wanted(
    before: str, schedule: str, wanted: float, expected: float
) -> None:
    first = trainer_of(adaptive(before))
    batch = batch_with_divergences(first, 0.1)
    first.train(batch)
    resumed = trainer_of(adaptive(schedule, learning_rate=wanted), seed=1)

    restore(copy.deepcopy(payload_of(first, Progress())), "here", resumed, Progress())

    assert resumed.coefficients.rates.policy / expected == pytest.approx(1.0)
    resumed.train(batch)
    assert rate_in_use(resumed) / expected == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", ["kl_adaptive_minibatch", "kl_adaptive_epoch"])
def test_an_adaptive_rate_looks_at_what_an_update_has_done_and_so_needs_only_one_in_a_dataset(schedule: str) -> None:
    # Before its update the policy is the one that acted: by that, every rate would be too low.
    trainer = trainer_of(adaptive(schedule, learning_rate=1.0, lr_adaptive_max=1.0))

    trainer.train(batch_with_divergences(trainer, 0.0))

    assert trainer.statistics()["kl"] < 1e-6
    assert trainer.coefficients.rates.policy == pytest.approx(1.0 / 1.5)
