"""Returns are normalized by their own running statistics; only the value loss uses normalized values."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic, ValueHead
from sfactory.model.normalizer import EPS, RunningNormalizer
from tests.support.parts import loss_of, model_of, random_batch, tiny_config, trainer_for

STANDING_STILL = OptimConfig(learning_rate=1e-30)  # updates change only statistics and what is adapted to them
VTRACE = AlgoConfig(gamma=0.9)
GAE = dataclasses.replace(VTRACE, with_vtrace=False)
EVERY_TARGET = pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])


def statistics_of(head: ValueHead) -> RunningNormalizer:
    assert head.returns is not None
    return head.returns


def assert_statistics(head: ValueHead, values: np.ndarray) -> None:
    found = statistics_of(head)
    assert found.count.item() == values.size
    assert found.mean.item() == pytest.approx(values.mean(), rel=1e-4, abs=1e-4)
    assert found.var.item() == pytest.approx(values.var(), rel=1e-4)


def warm_model() -> ActorCritic:
    """A model that has seen returns of mean 50 and deviation 200."""
    model = model_of(normalize_returns=True)
    model.value_head.observe(torch.tensor([[-150.0, 250.0]]), torch.ones(1, 2, dtype=torch.bool))
    return model


def without_normalization(model: ActorCritic) -> ActorCritic:
    """A model with the same policy and the same values that does not normalize returns."""
    twin = model_of(normalize_returns=False)
    twin.tower.load_state_dict(model.tower.state_dict())
    twin.policy_head.load_state_dict(model.policy_head.state_dict())
    head, statistics = model.value_head.linear, statistics_of(model.value_head)
    with torch.no_grad():
        twin.value_head.linear.weight.copy_(head.weight / statistics.scale)
        twin.value_head.linear.bias.copy_((head.bias - statistics.shift) / statistics.scale)
    return twin


def masked_batch(model: ActorCritic, seed: int = 1) -> Batch:
    """A batch of 5 steps in which a fifth of the steps is invalid, with rewards that are NaN there."""
    batch = random_batch(model, rows=6, seed=seed)
    valid = torch.rand(5, 6, generator=torch.Generator().manual_seed(seed)) > 0.2
    rewards = torch.where(valid, 30.0 + 10.0 * batch.rewards, torch.nan)
    assert 0 < int(valid.sum()) < valid.numel()
    return dataclasses.replace(batch, taken=valid, valid=valid, rewards=rewards)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (500.0, 300.0), (-3e4, 2e4), (0.5, 1e-2)])
def test_new_statistics_change_normalized_values_but_not_the_real_ones(mean: float, deviation: float) -> None:
    torch.manual_seed(0)
    head = ValueHead(8, tiny_config(normalize_returns=True))
    features, everything = torch.randn(200, 8), torch.ones(10, 20, dtype=torch.bool)
    head.observe(7.0 + 3.0 * torch.randn(10, 20), everything)
    normalized = head(features)
    values = head.denormalize(normalized)

    for _ in range(3):
        head.observe(mean + deviation * torch.randn(10, 20), everything)

    after = head(features)
    spread = math.sqrt(statistics_of(head).var.item())
    torch.testing.assert_close(head.denormalize(after), values, rtol=1e-4, atol=1e-4 * spread)
    assert float((after - normalized).detach().abs().mean()) > 0.1


@EVERY_TARGET
@pytest.mark.parametrize(("batches", "epochs"), [(1, 1), (2, 1), (3, 4)])
def test_target_of_every_valid_step_is_observed_once_per_dataset(algo: AlgoConfig, batches: int, epochs: int) -> None:
    model = model_of(normalize_returns=True)
    judge = copy.deepcopy(model)
    learner = LearnerConfig(num_batches_per_epoch=batches, num_epochs=epochs, early_stop_loss_change=0.0)
    trainer = trainer_for(model, algo, STANDING_STILL, learner)
    expected = []
    for seed in (1, 2):
        batch = masked_batch(model, seed=seed)
        expected.append(loss_of(judge, algo, batch).returns[batch.valid])
        trainer.train(batch)

    assert trainer.train_step == 2 * batches * epochs
    assert_statistics(model.value_head, torch.cat(expected).double().numpy())


def test_targets_of_a_skipped_update_are_not_observed() -> None:
    model = model_of(normalize_returns=True)
    trainer = trainer_for(model, VTRACE, STANDING_STILL, LearnerConfig(num_batches_per_epoch=2))
    batch = random_batch(model, rows=6)
    rewards = batch.rewards.clone()
    rewards[1, 5] = torch.nan

    trainer.train(dataclasses.replace(batch, rewards=rewards))

    expected = loss_of(model, VTRACE, batch.columns(slice(0, 3))).returns
    assert trainer.stats.skipped == 1
    assert_statistics(model.value_head, expected.double().numpy().ravel())


def test_acting_records_values_in_the_unit_of_rewards() -> None:
    model = warm_model()
    obs = {"obs": torch.randn(64, 3)}

    with torch.inference_mode():
        recorded = model.act(obs).value
        normalized = model.value_head(model.tower.encoder(obs))

    torch.testing.assert_close(recorded, 50.0 + math.sqrt(200.0**2 + EPS) * normalized, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(recorded, without_normalization(model)(obs).value.detach(), rtol=1e-4, atol=1e-2)


@EVERY_TARGET
def test_only_the_value_loss_uses_normalized_values(algo: AlgoConfig) -> None:
    model = warm_model()
    batch = masked_batch(model)
    algo = dataclasses.replace(algo, normalize_advantages=False, ppo_clip_value=0.0)

    ours, theirs = (loss_of(one, algo, batch) for one in (model, without_normalization(model)))

    torch.testing.assert_close(ours.returns[batch.valid], theirs.returns[batch.valid], rtol=1e-4, atol=1e-2)
    assert float(theirs.returns[batch.valid].std()) > 10.0  # far from normalized
    for name, scale in (("policy_loss", 1.0), ("value_mean", 1.0), ("value_loss", 200.0**2)):
        assert scale * ours.statistics[name] == pytest.approx(theirs.statistics[name], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("off_by", "expected"), [(100.0, 0.25), (-150.0, 0.25), (300.0, 0.75), (-500.0, 1.75)])
def test_value_clip_is_a_range_of_normalized_values(off_by: float, expected: float) -> None:
    model = warm_model()
    batch = random_batch(model)
    with torch.no_grad():
        values = model({"obs": batch.obs["obs"][:-1].flatten(0, 1)}).value.view(5, 4)
    # The target lies beyond the value as seen from the recorded one, so only the clip stops the gradient.
    rewards = values + math.copysign(50.0, off_by)
    changes = {"behavior_value": values - off_by, "rewards": rewards, "discounts": torch.zeros_like(rewards)}
    config = dataclasses.replace(GAE, ppo_clip_value=1.0, gae_lambda=1.0)

    loss = loss_of(model, config, dataclasses.replace(batch, **changes)).statistics["value_loss"]

    # 50 are 0.25 deviations; the part of ``off_by`` beyond 1 deviation is added.
    assert loss == pytest.approx(expected**2, rel=1e-3)
