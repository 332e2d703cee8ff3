"""A dataset is opened, passed over and closed; several may be open at once, each with masks as old as it is by then."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.trainer import Trainer
from tests.support.models import model_of
from tests.support.parts import evaluate, random_batch, tiny_model, trainer_for

GAE, VTRACE = AlgoConfig(with_vtrace=False), AlgoConfig()
NORMALIZED: dict[str, Any] = {"normalize_input": True, "normalize_returns": True}
STANDING_STILL = OptimConfig(learning_rate=1e-30)


def trainer_of(algo: AlgoConfig = VTRACE, optim: OptimConfig | None = None, **learner: Any) -> Trainer:
    settings = LearnerConfig(**{"num_batches_per_epoch": 2, "early_stop_loss_change": 0.0, **learner})
    return trainer_for(model_of(**NORMALIZED), algo, optim or OptimConfig(learning_rate=0.01), settings, seed=3)


def batches_of(count: int) -> list[Batch]:
    return [random_batch(tiny_model(), rows=6, seed=seed) for seed in range(1, count + 1)]


def aged_by(batch: Batch, versions: list[int]) -> Batch:
    """``batch``, whose row r was taken by weights of version ``versions[r]``."""
    version = torch.tensor(versions, dtype=torch.int32).expand(batch.valid.shape).clone()
    return dataclasses.replace(batch, policy_version=version)


def test_datasets_opened_at_the_same_step_are_shuffled_differently() -> None:
    trainer = trainer_of(optim=STANDING_STILL, shuffle_minibatches=True, num_batches_per_epoch=6)
    batch = batches_of(1)[0]
    marked = dataclasses.replace(batch, rewards=torch.arange(6.0).expand(5, 6).clone())
    one, other = trainer.open(marked), trainer.open(marked)
    orders = []

    for dataset in (one, other):
        trainer.learn(dataset)
        assert dataset.minibatches is not None
        orders.append([float(minibatch.batch.rewards[0, 0]) for minibatch in dataset.minibatches.epoch()])

    assert orders[0] != orders[1]


def test_steps_that_become_too_old_are_masked_in_the_next_pass() -> None:
    trainer = trainer_of(max_policy_lag=3, num_batches_per_epoch=1)
    dataset = trainer.open(aged_by(batches_of(1)[0], [0, 0, 0, -1, -1, -2]))
    fractions = []

    for _ in range(4):
        trainer.stats.clear()
        trainer.learn(dataset)
        fractions.append(trainer.statistics()["valid_fraction"])

    # At update 0 all rows are younger than 3; at 1 the oldest is 3 updates old; at 2 three are; at 3 all are.
    assert fractions[:3] == pytest.approx([1.0, 5 / 6, 3 / 6])
    assert math.isnan(fractions[3])
    assert trainer.train_step == 3
    # Each step counts once, though not all of them were there in each pass.
    assert trainer.close(dataset) == 30


@pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
def test_normalizers_count_a_dataset_once(algo: AlgoConfig) -> None:
    trainer = trainer_of(algo, STANDING_STILL)
    first, second = (trainer.open(batch) for batch in batches_of(2))
    normalizer, head = trainer.model.obs_normalizer, trainer.model.value_head.returns
    assert normalizer is not None
    assert head is not None

    def counted() -> tuple[int, int]:
        return int(normalizer._by_key["obs"].count), int(head.count)

    # Before anything is learned observations are taken in at once, later only when a dataset is closed.
    assert counted() == (60, 60 if algo is GAE else 0)
    for dataset in (first, second, first, second):
        trainer.learn(dataset)
    trainer.close(first)
    trainer.close(second)
    assert counted() == (60, 60)

    third = trainer.open(batches_of(3)[2])
    trainer.learn(third)
    trainer.learn(third)
    assert counted() == (60, 90)
    trainer.close(third)
    assert counted() == (90, 90)


def test_dataset_statistics_are_of_its_own_updates() -> None:
    trainer = trainer_of(optim=STANDING_STILL)
    batch = batches_of(1)[0]
    half = batch.taken.clone()
    half[:, ::2] = False
    whole, thin = trainer.open(batch), trainer.open(dataclasses.replace(batch, taken=half, valid=half))
    for dataset in (whole, thin, whole, thin):
        trainer.learn(dataset)
    found = []

    for dataset in (thin, whole):
        trainer.close(dataset)
        found.append(trainer.dataset_statistics()["valid_fraction"])

    assert found == pytest.approx([0.5, 1.0])
    assert trainer.statistics()["valid_fraction"] == pytest.approx(0.75)
    trainer.close(trainer.open(batch))
    assert trainer.dataset_statistics() == {}


def test_stopped_pass_is_the_last_and_counts_its_steps() -> None:
    trainer = trainer_of()
    dataset = trainer.open(batches_of(1)[0])
    answers = iter([False, True])

    more = trainer.learn(dataset, lambda: next(answers))

    assert not more
    assert trainer.train_step == 1
    assert trainer.close(dataset) == 15


def test_early_stop_compares_with_the_dataset_own_last_loss() -> None:
    # Nothing moves: the second pass over a dataset has the loss of its first, and that of the other has nothing to say.
    trainer = trainer_of(optim=STANDING_STILL, early_stop_loss_change=1e-6)
    first, second = (trainer.open(batch) for batch in batches_of(2))

    assert [trainer.learn(dataset) for dataset in (first, second, first, second)] == [True, True, False, False]


def batch_with_divergence(trainer: Trainer, difference: float) -> Batch:
    """A batch whose every log-probability was lower by ``difference`` when it was acted."""
    batch = batches_of(1)[0]
    with torch.no_grad():
        obs, actions = batch.obs["obs"][:-1].flatten(0, 1), batch.actions["action"].flatten()
        log_prob = evaluate(trainer.model, {"obs": obs}, {"action": actions}).log_prob.view(5, 6)
    return dataclasses.replace(batch, behavior_log_prob=log_prob - difference)


@pytest.mark.parametrize(("limit", "passes"), [(0.0, 5), (0.0215, 5), (0.0213, 1), (0.01, 1)])
def test_passes_end_once_the_policy_has_diverged_too_far_from_the_one_that_acted(limit: float, passes: int) -> None:
    trainer = trainer_for(
        tiny_model(),
        VTRACE,
        STANDING_STILL,
        LearnerConfig(num_batches_per_epoch=2, num_epochs=5, early_stop_loss_change=0.0, early_stop_kl=limit),
    )
    batch = batch_with_divergence(trainer, 0.2)  # e^0.2 - 1 - 0.2 is 0.021403

    trainer.train(batch)

    assert trainer.statistics()["kl"] == pytest.approx(0.021403, abs=1e-5)
    assert trainer.train_step == 2 * passes


def test_divergence_of_replayed_steps_does_not_end_passes() -> None:
    learner = LearnerConfig(num_epochs=3, early_stop_loss_change=0.0, early_stop_kl=0.01)
    trainer = trainer_for(tiny_model(), VTRACE, STANDING_STILL, learner)
    near, far = batch_with_divergence(trainer, 0.0), batch_with_divergence(trainer, 1.0)
    replayed = torch.zeros_like(near.valid)
    replayed[:, 3:] = True
    batch = dataclasses.replace(
        near,
        behavior_log_prob=torch.where(replayed, far.behavior_log_prob, near.behavior_log_prob),
        replayed=replayed,
    )

    trainer.train(batch)

    assert trainer.train_step == 3
    statistics = trainer.statistics()
    assert statistics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert statistics["replay_kl"] == pytest.approx(math.e - 2.0, rel=1e-3)


@pytest.mark.parametrize(("difference", "factor"), [(0.5, 1.5), (0.2, 1.0), (0.05, 0.5)])
def test_kl_penalty_adapts_to_the_divergence_after_a_dataset(difference: float, factor: float) -> None:
    algo = dataclasses.replace(VTRACE, kl_loss_coeff=0.25, kl_target=0.02)
    trainer = trainer_for(tiny_model(), algo, STANDING_STILL, LearnerConfig(num_epochs=2, early_stop_loss_change=0.0))

    trainer.train(batch_with_divergence(trainer, difference))

    assert trainer.coefficients.kl == pytest.approx(0.25 * factor)
    assert trainer.statistics()["kl_coeff"] == trainer.coefficients.kl


def test_scheduled_exploration_coefficient_reaches_the_loss() -> None:
    algo = dataclasses.replace(VTRACE, exploration_loss_coeff_schedule="0:100,1000:0")
    norms = []
    for env_steps in (0, 500, 1000):
        trainer = trainer_for(tiny_model(), algo, STANDING_STILL, LearnerConfig(), total_env_steps=10_000)
        trainer.coefficients.at(env_steps)
        trainer.train(batches_of(1)[0])
        statistics = trainer.statistics()
        norms.append((statistics["exploration_coeff"], statistics["grad_norm"]))

    assert [coefficient for coefficient, _ in norms] == [100.0, 50.0, 0.0]
    assert norms[0][1] > 1.5 * norms[1][1] > 3.0 * norms[2][1]
