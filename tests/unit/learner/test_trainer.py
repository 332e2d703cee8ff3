"""A dataset gives the updates that were ordered, and data that cannot teach changes nothing."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.trainer import Trainer
from tests.support.parts import random_batch, tiny_model, trainer_for

NAN = float("nan")


def trainer_of(
    batches: int = 1, epochs: int = 1, algo: AlgoConfig | None = None, optim: OptimConfig | None = None
) -> Trainer:
    learner = LearnerConfig(num_batches_per_epoch=batches, num_epochs=epochs)
    return trainer_for(tiny_model(), algo or AlgoConfig(), optim or OptimConfig(learning_rate=0.01), learner)


def state_of(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Copies of all weights and of the optimizer's state."""
    return copy.deepcopy((trainer.model.state_dict(), trainer.updater.optimizer.state_dict()))


def assert_same_state(trainer: Trainer, before: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
    weights, moments = before
    after_weights, after_moments = state_of(trainer)
    assert all(torch.equal(after_weights[name], tensor) for name, tensor in weights.items())
    assert after_moments["param_groups"] == moments["param_groups"]
    assert after_moments["state"].keys() == moments["state"].keys()
    for index, moment in moments["state"].items():
        for name, tensor in moment.items():
            assert torch.equal(after_moments["state"][index][name], tensor), (index, name)


def without_valid_steps(batch: Batch, columns: slice) -> Batch:
    valid = batch.valid.clone()
    valid[:, columns] = False
    return dataclasses.replace(batch, taken=valid, valid=valid)


def with_bad_reward(batch: Batch, row: int, value: float = NAN) -> Batch:
    rewards = batch.rewards.clone()
    rewards[1, row] = value
    return dataclasses.replace(batch, rewards=rewards)


@pytest.mark.parametrize(("batches", "epochs"), [(1, 1), (4, 1), (2, 3)])
def test_every_epoch_has_an_update_for_every_minibatch(batches: int, epochs: int) -> None:
    trainer = trainer_of(batches, epochs)
    before = state_of(trainer)[0]

    trainer.train(random_batch(trainer.model, rows=8))

    assert trainer.train_step == batches * epochs
    assert trainer.stats.skipped == 0
    assert any(not torch.equal(before[name], tensor) for name, tensor in trainer.model.state_dict().items())
    assert {int(moment["step"]) for moment in trainer.updater.optimizer.state_dict()["state"].values()} == {
        batches * epochs
    }


def test_a_minibatch_without_a_valid_step_changes_nothing_at_all() -> None:
    trainer = trainer_of()
    batch = random_batch(trainer.model)
    trainer.train(batch)  # Adam has momentum now, which would move weights by itself
    before, updates = state_of(trainer), trainer.train_step

    trainer.train(without_valid_steps(batch, slice(None)))

    assert_same_state(trainer, before)
    assert (trainer.train_step, trainer.stats.skipped) == (updates, 0)


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_skips_the_step_and_is_counted(bad: float) -> None:
    trainer = trainer_of()
    batch = random_batch(trainer.model)
    trainer.train(batch)
    trainer.stats.clear()
    before = state_of(trainer)

    trainer.train(with_bad_reward(batch, row=0, value=bad))

    assert_same_state(trainer, before)
    assert (trainer.train_step, trainer.stats.skipped) == (2, 1)
    assert trainer.stats.updates == 0


def test_one_bad_minibatch_does_not_spoil_its_neighbors() -> None:
    trainer = trainer_of(batches=2)

    trainer.train(with_bad_reward(random_batch(trainer.model, rows=6), row=5))

    assert (trainer.train_step, trainer.stats.skipped) == (2, 1)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in trainer.model.parameters())
    statistics = trainer.statistics()
    assert [name for name, value in statistics.items() if not math.isfinite(value)] == ["replay_kl"]  # there is none


def test_only_steps_that_were_learned_from_count_as_trained(caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_of(batches=2)
    batch = random_batch(trainer.model, rows=6)  # 5 steps of 6 rows, 3 rows to a minibatch

    whole = trainer.train(batch)
    masked = trainer.train(without_valid_steps(batch, slice(0, 1)))
    assert caplog.text == ""
    half = trainer.train(with_bad_reward(batch, row=5))
    nothing = trainer.train(with_bad_reward(with_bad_reward(batch, row=5), row=0))

    assert (whole, masked, half, nothing) == (30, 25, 15, 0)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.split(" skipped")[0] for text in warnings] == ["update 6", "update 7", "update 8"]
    assert all("not finite" in text for text in warnings)


@pytest.mark.parametrize(
    ("change", "rate", "epochs"),
    [
        (1e9, 0.01, 2),  # the second epoch is the first that can be compared
        (0.0, 0.01, 7),
        (0.0, 1e-30, 7),  # exactly equal losses are no reason either
        (1e-6, 1e-30, 2),
        (1e-6, 0.01, 7),
    ],
)
@pytest.mark.parametrize("with_vtrace", [True, False])
def test_epochs_end_once_the_policy_loss_changes_less_than_was_asked_for(
    with_vtrace: bool, change: float, rate: float, epochs: int
) -> None:
    learner = LearnerConfig(num_batches_per_epoch=2, num_epochs=7, early_stop_loss_change=change)
    algo = AlgoConfig(with_vtrace=with_vtrace)
    trainer = trainer_for(tiny_model(), algo, OptimConfig(learning_rate=rate), learner)
    batch = random_batch(trainer.model, rows=6)

    for dataset in (1, 2):
        assert trainer.train(batch) == 30
        # Each dataset begins with no loss to compare with.
        assert trainer.train_step == dataset * 2 * epochs


def test_the_mean_policy_loss_of_an_epoch_is_what_counts() -> None:
    # Losses of single minibatches differ by far, and as they are shuffled so do first and last ones of two epochs.
    learner = LearnerConfig(
        num_batches_per_epoch=3, num_epochs=4, early_stop_loss_change=1e-4, shuffle_minibatches=True
    )
    algo = AlgoConfig(with_vtrace=False, normalize_advantages=False)
    trainer = trainer_for(tiny_model(), algo, OptimConfig(learning_rate=1e-30), learner)

    trainer.train(random_batch(trainer.model, rows=6))

    assert trainer.train_step == 2 * 3


def test_training_stops_between_two_minibatches_and_counts_what_was_learned_from() -> None:
    trainer = trainer_of(batches=2, epochs=100_000)
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        asked += 1
        return asked == 2

    assert trainer.train(random_batch(trainer.model, rows=6), stopping) == 15
    assert trainer.train(random_batch(trainer.model, rows=6), lambda: True) == 0
    assert trainer.train_step == 1


def test_ten_bad_updates_in_a_row_end_the_run_with_finite_weights() -> None:
    trainer = trainer_of()
    bad = with_bad_reward(random_batch(trainer.model), row=0)
    before = state_of(trainer)[0]
    for _ in range(9):
        trainer.train(bad)

    with pytest.raises(DivergedError, match=r"10 updates in a row .*\(update 10\); lower --learning_rate"):
        trainer.train(bad)

    after, moments = state_of(trainer)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {float(tensor.abs().max()) for moment in moments["state"].values() for tensor in moment.values()} == {0.0}
    assert trainer.stats.skipped == 10


def test_good_update_resets_the_count_of_bad_ones() -> None:
    trainer = trainer_of()
    good = random_batch(trainer.model)
    bad = with_bad_reward(good, row=0)

    for _ in range(3):
        for batch in [bad] * 9 + [good]:
            trainer.train(batch)

    assert (trainer.train_step, trainer.stats.skipped) == (30, 27)
