"""Returns are normalized by their own running statistics, which only the value loss sees."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic, ValueHead
from sfactory.model.normalizer import EPS, RunningNormalizer
from tests.support.losses import loss_of
from tests.support.models import model_of, tiny_config
from tests.support.parts import random_batch, trainer_for

# Updates at this rate change nothing but statistics, and what is adapted to them.
STANDING_STILL = OptimConfig(learning_rate=1e-30)
GAE, VTRACE = AlgoConfig(gamma=0.9, with_vtrace=False), AlgoConfig(gamma=0.9)


def statistics_of(head: ValueHead) -> RunningNormalizer:
    assert head.returns is not None
    return head.returns


def assert_statistics(found: RunningNormalizer, values: np.ndarray, rtol: float) -> None:
    assert found.count.item() == values.size
    assert found.mean.item() == pytest.approx(values.mean(), rel=rtol, abs=rtol)
    assert found.var.item() == pytest.approx(values.var(), rel=rtol)


def warm_model(mean: float = 50.0, deviation: float = 200.0) -> ActorCritic:
    """A model that has seen returns of that mean and deviation."""
    model = model_of(normalize_returns=True)
    returns = torch.tensor([[mean - deviation, mean + deviation]])
    model.value_head.observe(returns, torch.ones(1, 2, dtype=torch.bool))
    return model


def without_normalization(model: ActorCritic) -> ActorCritic:
    """The model that gives the same policy and the same values without normalizing them."""
    twin = model_of(normalize_returns=False)
    twin.tower.load_state_dict(model.tower.state_dict())
    twin.policy_head.load_state_dict(model.policy_head.state_dict())
    head, statistics = model.value_head.linear, statistics_of(model.value_head)
    with torch.no_grad():
        twin.value_head.linear.weight.copy_(head.weight / statistics.scale)
        twin.value_head.linear.bias.copy_((head.bias - statistics.shift) / statistics.scale)
    return twin


def masked_batch(model: ActorCritic, rows: int = 6, seed: int = 1) -> Batch:
    """A batch of 5 steps in which a fifth of the steps is invalid, with rewards that are NaN there."""
    batch = random_batch(model, rows=rows, seed=seed)
    valid = torch.rand(5, rows, generator=torch.Generator().manual_seed(seed)) > 0.2
    rewards = torch.where(valid, 30.0 + 10.0 * batch.rewards, torch.nan)
    assert 0 < int(valid.sum()) < valid.numel()
    return dataclasses.replace(batch, taken=valid, valid=valid, rewards=rewards)


def test_statistics_equal_those_of_all_valid_returns() -> None:
    head, generator = ValueHead(8, tiny_config(normalize_returns=True)), torch.Generator().manual_seed(0)
    seen: list[Tensor] = []
    for rows in (1, 30, 7):
        returns = -40.0 + 300.0 * torch.randn(5, rows, generator=generator)
        valid = torch.rand(5, rows, generator=generator) > 0.3
        head.observe(torch.where(valid, returns, torch.nan), valid)
        seen.append(returns[valid])

    assert_statistics(statistics_of(head), torch.cat(seen).double().numpy(), rtol=1e-9)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (500.0, 300.0), (-3e4, 2e4), (0.5, 1e-2)])
def test_an_update_of_statistics_changes_normalized_values_and_leaves_the_real_ones(
    mean: float, deviation: float
) -> None:
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


def test_without_normalization_values_are_in_the_unit_of_rewards_and_returns_are_not_observed() -> None:
    head = ValueHead(8, tiny_config(normalize_returns=False))
    before, values = copy.deepcopy(head.state_dict()), torch.randn(5, 4)

    head.observe(1000.0 * values, torch.ones(5, 4, dtype=torch.bool))

    assert torch.equal(head.normalize(values), values)
    assert torch.equal(head.denormalize(values), values)
    assert all(torch.equal(before[name], tensor) for name, tensor in head.state_dict().items())


@pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
@pytest.mark.parametrize(("batches", "epochs"), [(1, 1), (2, 1), (3, 4)])
def test_the_target_of_every_valid_step_is_observed_once_per_dataset(
    algo: AlgoConfig, batches: int, epochs: int
) -> None:
    model = model_of(normalize_returns=True)
    judge = copy.deepcopy(model)
    learner = LearnerConfig(num_batches_per_epoch=batches, num_epochs=epochs, early_stop_loss_change=0.0)
    trainer = trainer_for(model, algo, STANDING_STILL, learner)
    expected = []
    for seed in (1, 2):
        batch = masked_batch(model, seed=seed)
        returns = loss_of(judge, algo, batch).returns
        expected.append(returns[batch.valid])
        trainer.train(batch)

    assert trainer.train_step == 2 * batches * epochs
    assert_statistics(statistics_of(model.value_head), torch.cat(expected).double().numpy(), rtol=1e-4)


def test_the_targets_of_an_update_that_is_skipped_are_not_observed() -> None:
    model = model_of(normalize_returns=True)
    trainer = trainer_for(model, VTRACE, STANDING_STILL, LearnerConfig(num_batches_per_epoch=2))
    batch = random_batch(model, rows=6)
    rewards = batch.rewards.clone()
    rewards[1, 5] = torch.nan

    trainer.train(dataclasses.replace(batch, rewards=rewards))

    expected = loss_of(model, VTRACE, batch.columns(slice(0, 3))).returns
    assert trainer.stats.skipped == 1
    assert_statistics(statistics_of(model.value_head), expected.double().numpy().ravel(), rtol=1e-4)


def test_acting_records_values_in_the_unit_of_rewards() -> None:
    model = warm_model(mean=50.0, deviation=200.0)
    obs = {"obs": torch.randn(64, 3)}

    with torch.inference_mode():
        recorded = model.act(obs).value
        normalized = model.value_head(model.tower.encoder(obs))

    # Normalized values of a fresh head are of the size of 1.
    torch.testing.assert_close(recorded, 50.0 + math.sqrt(200.0**2 + EPS) * normalized, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(recorded, without_normalization(model)(obs).value.detach(), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
def test_targets_and_advantages_are_computed_in_the_unit_of_rewards(algo: AlgoConfig) -> None:
    model = warm_model()
    twin = without_normalization(model)
    batch = masked_batch(model)
    algo = dataclasses.replace(algo, normalize_advantages=False)
    judged = []
    for one in (model, twin):
        loss = loss_of(one, algo, batch)
        judged.append((loss.returns[batch.valid], loss.statistics["policy_loss"]))

    (ours, our_policy_loss), (theirs, their_policy_loss) = judged
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-2)
    assert our_policy_loss == pytest.approx(their_policy_loss, rel=1e-3, abs=1e-3)
    assert float(theirs.std()) > 10.0  # far from normalized


@pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
def test_the_value_loss_compares_normalized_values(algo: AlgoConfig) -> None:
    model = warm_model(deviation=200.0)
    twin = without_normalization(model)
    batch = masked_batch(model)
    algo = dataclasses.replace(algo, ppo_clip_value=0.0)
    losses = []
    for one in (model, twin):
        losses.append(loss_of(one, algo, batch).statistics)

    ours, theirs = losses
    assert ours["value_loss"] == pytest.approx(theirs["value_loss"] / 200.0**2, rel=1e-3)
    # What is reported as the mean value is in the unit of rewards all the same.
    assert ours["value_mean"] == pytest.approx(theirs["value_mean"], rel=1e-3)


@pytest.mark.parametrize(("off_by", "expected"), [(100.0, 0.25), (-150.0, 0.25), (300.0, 0.75), (-500.0, 1.75)])
def test_the_value_clip_is_a_range_in_normalized_units(off_by: float, expected: float) -> None:
    model = warm_model(deviation=200.0)
    batch = random_batch(model)
    with torch.no_grad():
        values = model({"obs": batch.obs["obs"][:-1].flatten(0, 1)}).value.view(5, 4)
    # The target lies beyond the value as seen from the recorded one: only the clip holds the gradient back.
    rewards = values + math.copysign(50.0, off_by)
    batch = dataclasses.replace(
        batch, behavior_value=values - off_by, rewards=rewards, discounts=torch.zeros_like(rewards)
    )
    config = dataclasses.replace(GAE, ppo_clip_value=1.0, gae_lambda=1.0)

    loss = loss_of(model, config, batch).statistics["value_loss"]

    # 50 are 0.25 deviations; what the present value is more than 1 deviation off the recorded one comes on top.
    assert loss == pytest.approx(expected**2, rel=1e-3)
