"""Rates and coefficients follow their schedules and divergences, also after a resume."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.coefficients import Coefficients, standing_still
from sfactory.learner.gradient_step import Rates
from sfactory.learner.trainer import Trainer
from sfactory.messages import TrainStats
from tests.support.lone_learner import LoneLearner
from tests.support.parts import as_acted, random_batch, tiny_model, trainer_for

POINTS = "0:0.5,1000:0.25,3000:0.0"
# (env steps, value): at every point, between points, and behind the last.
ON_THE_WAY = [(0, 0.5), (500, 0.375), (1000, 0.25), (1500, 0.1875), (3000, 0.0), (10**9, 0.0)]
ADAPTIVE = pytest.mark.parametrize("schedule", ["kl_adaptive_minibatch", "kl_adaptive_epoch"])


def coefficients_of(optim: dict[str, Any] | None = None, algo: dict[str, Any] | None = None) -> Coefficients:
    return Coefficients(OptimConfig(**(optim or {})), AlgoConfig(**(algo or {})), total_env_steps=1000)


def test_values_follow_their_schedules_exactly_from_the_start() -> None:
    rate = coefficients_of({"lr_schedule": POINTS, "learning_rate": 7.0})
    critic = {"separate_value_optimizer": True, "value_lr_schedule": POINTS, "learning_rate": 0.125, "value_lr": 7.0}
    value_rate = coefficients_of(critic)
    exploration = coefficients_of(algo={"exploration_loss_coeff_schedule": POINTS, "exploration_loss_coeff": 7.0})
    assert (rate.rates.policy, value_rate.rates.value, exploration.exploration) == (0.5, 0.5, 0.5)

    for env_steps, expected in ON_THE_WAY:
        for coefficients in (rate, value_rate, exploration):
            coefficients.at(env_steps)
        assert rate.rates == Rates(expected, None)
        assert value_rate.rates == Rates(0.125, expected)
        assert exploration.exploration == expected


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear_decay", {0: 0.5, 250: 0.375, 500: 0.25, 1000: 0.0, 2000: 0.0}),
        ("linear_decay:0.5:0.75", {0: 0.5, 250: 0.5, 500: 0.5, 625: 0.25, 750: 0.0, 2000: 0.0}),
    ],
)
def test_a_decay_falls_on_a_line_to_0_and_stays_there(schedule: str, expected: dict[int, float]) -> None:
    rate = coefficients_of({"lr_schedule": schedule, "learning_rate": 0.5})
    weight = coefficients_of(algo={"exploration_loss_coeff_schedule": schedule, "exploration_loss_coeff": 0.5})

    found_rates, found_weights = {}, {}
    for env_steps in expected:
        rate.at(env_steps)
        weight.at(env_steps)
        found_rates[env_steps] = rate.rates.policy
        found_weights[env_steps] = weight.exploration

    assert found_rates == expected
    assert found_weights == expected


@pytest.mark.parametrize(
    ("kls", "expected"),
    [((0.021,), 0.3), ((0.02, 0.01, 0.005), 0.2), ((0.004, 0.004), 0.05), ((0.021, 0.004, math.nan), 0.15)],
)
def test_the_penalty_adapts_to_the_divergence_of_datasets(kls: tuple[float, ...], expected: float) -> None:
    coefficients = coefficients_of(algo={"kl_loss_coeff": 0.2, "kl_target": 0.01})
    assert (coefficients.kl, coefficients.looks_at_datasets) == (0.2, True)
    assert coefficients_of(algo={"kl_loss_coeff": 0.0, "kl_target": 0.01}).kl == 1e-4  # within its bounds

    for kl in kls:
        coefficients.after_dataset(kl)

    assert coefficients.kl == pytest.approx(expected)


# (coefficient, target) before and after the resume.
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((0.2, 0.01), (0.2, 0.01), 0.45),
        ((0.2, 0.01), (0.2, 0.02), 0.45),
        ((0.2, 0.01), (0.8, 0.01), 0.8),
        ((0.2, 0.01), (0.2, 0.0), 0.2),
        ((0.2, 0.0), (0.2, 0.01), 0.2),
    ],
)
def test_resumed_penalty_continues_unless_its_start_differs(
    before: tuple[float, float], after: tuple[float, float], expected: float
) -> None:
    first, resumed = (coefficients_of(algo={"kl_loss_coeff": c, "kl_target": t}) for c, t in (before, after))
    for _ in range(2):
        first.after_dataset(1.0)

    resumed.restore(copy.deepcopy(first.state()))

    assert resumed.kl == pytest.approx(expected)


def test_updates_that_stand_still_have_no_rate_of_any_kind() -> None:
    optim = OptimConfig(lr_schedule=POINTS, value_lr_schedule=POINTS, value_lr=1.0, separate_value_optimizer=True)

    still = Coefficients(standing_still(optim), AlgoConfig(), total_env_steps=1000)
    still.at(500)

    assert still.rates == Rates(0.0, 0.0)


# A rate at which weights do not change: the divergence stays what the batch was made with.
TINY_RATE = 1e-12
SHIFT = 0.2
KL = math.expm1(SHIFT) - SHIFT  # divergence of a batch with that shift


def adaptive(schedule: str, kl: float = 4.0, **fields: Any) -> OptimConfig:
    """``kl``: KL as a multiple of the threshold."""
    settings = {"learning_rate": TINY_RATE, "lr_adaptive_min": 1e-20, "lr_adaptive_max": 1.0, **fields}
    return OptimConfig(lr_schedule=schedule, lr_schedule_kl_threshold=KL / kl, **settings)


def trainer_of(optim: OptimConfig, batches: int = 1, epochs: int = 1, seed: int = 0) -> Trainer:
    learner = LearnerConfig(num_batches_per_epoch=batches, num_epochs=epochs, early_stop_loss_change=0.0)
    return trainer_for(tiny_model(seed), optim=optim, learner=learner, total_env_steps=1000)


def batch_with_shifts(trainer: Trainer, *shifts: float) -> Batch:
    """A batch of two rows for each of these differences to the log-probabilities of when it was acted."""
    batch = as_acted(trainer.model, random_batch(trainer.model, rows=2 * len(shifts)))
    batch.behavior_log_prob.sub_(torch.tensor(shifts).repeat_interleave(2))
    return batch


def rate_in_use(trainer: Trainer) -> float:
    return float(trainer.updater.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(("frameskip", "limit"), [(1, {"train_for_env_steps": 100}), (4, {"train_for_frames": 400})])
def test_a_learner_decays_its_rate_by_the_env_steps_it_has_learned_from(frameskip: int, limit: dict[str, Any]) -> None:
    learner = LoneLearner(**limit, learning_rate=0.5, lr_schedule="linear_decay", env_frameskip=frameskip)
    rates = []
    for _ in range(5):
        learner.learn()
        learner.learning.report()
        rates += [stats.learning_rate for stats in learner.messages(TrainStats)]

    # 20 of 100 steps are learned from in each dataset; a rate is that of the steps before its update.
    assert rates == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])
    assert learner.learning.over


@pytest.mark.parametrize(("schedule", "changes"), [("kl_adaptive_minibatch", 6), ("kl_adaptive_epoch", 3)])
@pytest.mark.parametrize(("kl", "factor"), [(2.2, 1 / 1.5), (1.8, 1.0), (0.6, 1.0), (0.4, 1.5)])
def test_the_rate_changes_after_too_large_or_too_small_a_divergence(
    kl: float, factor: float, schedule: str, changes: int
) -> None:
    trainer = trainer_of(adaptive(schedule, kl), batches=2, epochs=3)

    trainer.train(batch_with_shifts(trainer, SHIFT, SHIFT))

    assert trainer.train_step == 6
    assert trainer.coefficients.rates.policy / TINY_RATE == pytest.approx(factor**changes)
    # The last step was made with the rate before the last change.
    assert rate_in_use(trainer) / TINY_RATE == pytest.approx(factor ** (changes - 1))


@ADAPTIVE
def test_an_adaptive_rate_begins_within_its_bounds(schedule: str) -> None:
    bounds = {"lr_adaptive_min": 0.001, "lr_adaptive_max": 0.01}

    def first(rate: float, schedule: str) -> float:
        return float(coefficients_of({"learning_rate": rate, "lr_schedule": schedule, **bounds}).rates.policy)

    assert [first(rate, schedule) for rate in (0.05, 0.005, 0.0005)] == [0.01, 0.005, 0.001]
    assert first(0.05, "constant") == 0.05


@pytest.mark.parametrize(("schedule", "factor"), [("kl_adaptive_minibatch", 1 / 1.5), ("kl_adaptive_epoch", 1.0)])
def test_an_epoch_counts_by_the_mean_of_its_minibatches(schedule: str, factor: float) -> None:
    trainer = trainer_of(adaptive(schedule, kl=2.5), batches=3)

    # One by one they say down, down, up; their mean of 5 / 3 says nothing.
    trainer.train(batch_with_shifts(trainer, SHIFT, SHIFT, 0.0))

    assert trainer.coefficients.rates.policy / TINY_RATE == pytest.approx(factor)


@ADAPTIVE
def test_a_skipped_update_does_not_change_the_rate(schedule: str) -> None:
    trainer = trainer_of(adaptive(schedule))
    batch = batch_with_shifts(trainer, SHIFT)
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
        ("kl_adaptive_minibatch", "linear_decay", TINY_RATE, TINY_RATE),
    ],
)
def test_resumed_run_takes_the_saved_rate_of_the_same_adaptive_schedule_and_start(
    before: str, schedule: str, wanted: float, expected: float
) -> None:
    first = trainer_of(adaptive(before))
    batch = batch_with_shifts(first, SHIFT)
    first.train(batch)
    resumed = trainer_of(adaptive(schedule, learning_rate=wanted), seed=1)

    restore(copy.deepcopy(payload_of(first, Progress())), "here", resumed, Progress())

    assert resumed.coefficients.rates.policy / expected == pytest.approx(1.0)
    resumed.train(batch)
    assert rate_in_use(resumed) / expected == pytest.approx(1.0)


@ADAPTIVE
def test_an_adaptive_rate_looks_at_the_policy_after_the_update(schedule: str) -> None:
    # Before its update the policy is the one that acted: by that, every rate would be too low.
    trainer = trainer_of(adaptive(schedule, learning_rate=1.0, lr_adaptive_max=1.0))

    trainer.train(batch_with_shifts(trainer, 0.0))

    assert trainer.statistics()["kl"] < 1e-6
    assert trainer.coefficients.rates.policy == pytest.approx(1.0 / 1.5)
