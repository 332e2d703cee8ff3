"""The learning rate follows its schedule: along a line of env steps, or after the divergence of updates."""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
from typing import Any

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.coefficients import Coefficients
from sfactory.learner.trainer import Trainer
from sfactory.messages import TrainStats
from tests.support.lone_learner import LoneLearner
from tests.support.parts import evaluate, random_batch, tiny_model, trainer_for

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


def test_a_constant_rate_stays_whatever_happens() -> None:
    coefficients = Coefficients(OptimConfig(learning_rate=0.5), AlgoConfig(), total_env_steps=1000)

    coefficients.at(900)
    coefficients.after_update(10.0)
    coefficients.after_epoch()

    assert (coefficients.rates.policy, coefficients.looks_at_updates) == (0.5, False)


@pytest.mark.parametrize(("env_steps", "expected"), [(0, 0.5), (250, 0.375), (999, 0.0005), (1000, 0.0), (5000, 0.0)])
def test_linear_decay_falls_with_env_steps_to_0_at_their_limit(env_steps: int, expected: float) -> None:
    optim = OptimConfig(learning_rate=0.5, lr_schedule="linear_decay")
    coefficients = Coefficients(optim, AlgoConfig(), total_env_steps=1000)

    coefficients.at(env_steps)

    assert coefficients.rates.policy == pytest.approx(expected)


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


def test_a_resumed_trainer_goes_on_on_the_line_of_linear_decay() -> None:
    optim = OptimConfig(learning_rate=0.5, lr_schedule="linear_decay")
    first, resumed, progress = trainer_of(optim), trainer_of(optim, seed=1), Progress()
    first.coefficients.at(400)
    first.train(random_batch(first.model))
    payload = copy.deepcopy(payload_of(first, Progress(env_steps=500)))

    restore(payload, "here", resumed, progress)
    resumed.coefficients.at(progress.env_steps)
    resumed.train(random_batch(resumed.model))

    assert rate_in_use(first) == pytest.approx(0.3)
    assert rate_in_use(resumed) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("divergence", "factor"),
    [(2.2 * THRESHOLD, 1 / 1.5), (1.8 * THRESHOLD, 1.0), (0.6 * THRESHOLD, 1.0), (0.4 * THRESHOLD, 1.5), (0.0, 1.5)],
)
def test_the_rate_changes_after_every_minibatch_that_diverges_too_much_or_too_little(
    divergence: float, factor: float
) -> None:
    trainer = trainer_of(adaptive("kl_adaptive_minibatch"), batches=2, epochs=3)

    trainer.train(batch_with_divergences(trainer, divergence, divergence))

    assert trainer.train_step == 6
    assert trainer.coefficients.rates.policy / TINY_RATE == pytest.approx(factor**6)
    # A step is made with the rate that the minibatches before it have led to.
    assert rate_in_use(trainer) / TINY_RATE == pytest.approx(factor**5)


@pytest.mark.parametrize(
    ("divergence", "factor"), [(2.2 * THRESHOLD, 1 / 1.5), (1.5 * THRESHOLD, 1.0), (0.4 * THRESHOLD, 1.5)]
)
def test_the_rate_changes_after_every_epoch_that_diverges_too_much_or_too_little(
    divergence: float, factor: float
) -> None:
    trainer = trainer_of(adaptive("kl_adaptive_epoch"), batches=2, epochs=3)

    trainer.train(batch_with_divergences(trainer, divergence, divergence))

    assert trainer.coefficients.rates.policy / TINY_RATE == pytest.approx(factor**3)
    assert rate_in_use(trainer) / TINY_RATE == pytest.approx(factor**2)


@pytest.mark.parametrize(("schedule", "factor"), [("kl_adaptive_minibatch", 1 / 1.5), ("kl_adaptive_epoch", 1.0)])
def test_an_epoch_counts_by_the_mean_of_its_minibatches(schedule: str, factor: float) -> None:
    trainer = trainer_of(adaptive(schedule), batches=3)

    # One by one they say down, down, up; their mean of 5 / 3 says nothing.
    trainer.train(batch_with_divergences(trainer, 2.5 * THRESHOLD, 2.5 * THRESHOLD, 0.0))

    assert trainer.coefficients.rates.policy / TINY_RATE == pytest.approx(factor)


@pytest.mark.parametrize(("threshold", "factor"), [(0.02, 1 / 1.5), (0.05, 1.0), (0.2, 1.5)])
def test_the_threshold_is_what_divergences_are_held_against(threshold: float, factor: float) -> None:
    optim = dataclasses.replace(adaptive("kl_adaptive_minibatch"), lr_schedule_kl_threshold=threshold)
    trainer = trainer_of(optim)

    trainer.train(batch_with_divergences(trainer, 0.05))

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


@pytest.mark.parametrize("schedule", ["kl_adaptive_minibatch", "kl_adaptive_epoch"])
@pytest.mark.parametrize("start", [1e-4, 10.0])
def test_an_adaptive_rate_leads_to_updates_that_diverge_by_about_the_threshold(schedule: str, start: float) -> None:
    trainer = trainer_of(adaptive(schedule, learning_rate=start, lr_adaptive_max=10.0), epochs=4)
    divergences = []
    for seed in range(40):
        batch = random_batch(trainer.model, rows=16, seed=seed)
        obs, actions = batch.obs["obs"][:-1].flatten(0, 1), batch.actions["action"].flatten()
        with torch.no_grad():
            acted = evaluate(trainer.model, {"obs": obs}, {"action": actions})
        trainer.stats.clear()
        trainer.train(dataclasses.replace(batch, behavior_log_prob=acted.log_prob.view(5, 16)))
        divergences.append(trainer.statistics()["kl"])

    # Far too small or far too large at the start, within a factor of 10 of what was wanted in the end.
    assert THRESHOLD / 10 < statistics.median(divergences[20:]) < THRESHOLD * 10
    assert not THRESHOLD / 50 < divergences[0] < THRESHOLD * 50
