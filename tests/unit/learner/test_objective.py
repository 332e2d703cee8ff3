"""The loss of a minibatch is the one that its equations give, and invalid rows have no part in it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch
from sfactory.learner.loss import LossFunction
from sfactory.model.actor_critic import ActorCritic
from tests.support.losses import loss_and_gradients as of_loss
from tests.support.losses import loss_of
from tests.support.parts import evaluate, fields_of, random_batch, tiny_model

VTRACE = AlgoConfig(gamma=0.9, normalize_advantages=False, ppo_clip_ratio=0.1, ppo_clip_value=0.3)
GAE = dataclasses.replace(VTRACE, with_vtrace=False)


class Judged:
    """What ``model`` says of a batch, as lists of plain floats: log_prob, entropy, value [T][R], bootstrap [R]."""

    def __init__(self, model: ActorCritic, batch: Batch) -> None:
        steps, rows = batch.valid.shape
        obs = batch.obs["obs"]
        with torch.no_grad():
            flat = evaluate(model, {"obs": obs[:-1].flatten(0, 1)}, {"action": batch.actions["action"].flatten()})
            self.bootstrap: list[float] = model({"obs": obs[-1]}).value.tolist()
        self.log_prob: list[list[float]] = flat.log_prob.view(steps, rows).tolist()
        self.entropy: list[list[float]] = flat.entropy.view(steps, rows).tolist()
        self.value: list[list[float]] = flat.value.view(steps, rows).tolist()


def vtrace_of_row(judged: Judged, batch: Batch, row: int, config: AlgoConfig) -> tuple[list[float], list[float]]:
    """(vs, advantages without the ratio) of one row, by the sums of the paper and not by a recursion."""
    steps = batch.valid.shape[0]
    values = [judged.value[t][row] for t in range(steps)] + [judged.bootstrap[row]]
    ratio = [math.exp(judged.log_prob[t][row] - float(batch.behavior_log_prob[t, row])) for t in range(steps)]
    valid = [bool(batch.valid[t, row]) for t in range(steps)]
    rho_clip, c_clip = config.vtrace_rho or math.inf, config.vtrace_c or math.inf
    rho = [min(rho_clip, r) if v else 0.0 for r, v in zip(ratio, valid, strict=True)]
    c = [config.vtrace_lambda * min(c_clip, r) if v else 0.0 for r, v in zip(ratio, valid, strict=True)]
    reward = [float(batch.rewards[t, row]) for t in range(steps)]
    discount = [float(batch.discounts[t, row]) for t in range(steps)]
    delta = [rho[t] * (reward[t] + discount[t] * values[t + 1] - values[t]) if valid[t] else 0.0 for t in range(steps)]
    vs = []
    for t in range(steps):
        total, weight = values[t], 1.0
        for u in range(t, steps):
            total += weight * delta[u]
            weight *= discount[u] * c[u]
        vs.append(total)
    ahead = [*vs[1:], values[-1]]
    return vs, [reward[t] + discount[t] * ahead[t] - values[t] if valid[t] else 0.0 for t in range(steps)]


def loss_by_hand(model: ActorCritic, batch: Batch, config: AlgoConfig) -> float:
    """The V-trace + PPO loss, cell by cell."""
    judged = Judged(model, batch)
    policy, value, entropy = 0.0, 0.0, 0.0
    cells = [(t, r) for t in range(batch.valid.shape[0]) for r in range(batch.rows) if batch.valid[t, r]]
    targets = [vtrace_of_row(judged, batch, row, config) for row in range(batch.rows)]
    for t, row in cells:
        vs, advantage = targets[row][0][t], targets[row][1][t]
        ratio = math.exp(judged.log_prob[t][row] - float(batch.behavior_log_prob[t, row]))
        clipped = min(max(ratio, 1 / (1 + config.ppo_clip_ratio)), 1 + config.ppo_clip_ratio)
        policy -= min(ratio * advantage, clipped * advantage)
        old = float(batch.behavior_value[t, row])
        near = old + min(max(judged.value[t][row] - old, -config.ppo_clip_value), config.ppo_clip_value)
        value += max((judged.value[t][row] - vs) ** 2, (near - vs) ** 2)
        entropy += judged.entropy[t][row]
    terms = policy + config.value_loss_coeff * value - config.exploration_loss_coeff * entropy
    return terms / len(cells)


def with_ends(batch: Batch) -> Batch:
    """Row 1 terminates at step 2; row 2 is truncated by step 1, so that its row 2 is a truncation row."""
    discounts, valid = batch.discounts.clone(), batch.valid.clone()
    discounts[2, 1] = 0.0
    valid[2, 2] = False
    return dataclasses.replace(batch, discounts=discounts, valid=valid)


def loss_and_gradients(
    model: ActorCritic, batch: Batch, config: AlgoConfig, whole: Batch | None = None
) -> tuple[float, list[Tensor]]:
    """Loss of ``batch``; its GAE targets, if any, are made of ``whole`` and are cut to the batch's first rows."""
    targets = LossFunction(model, config).gae_targets(whole or batch)
    part = None if targets is None else targets.columns(slice(0, batch.rows))
    return of_loss(loss_of(model, config, batch, targets=part), model)


def test_the_vtrace_loss_is_the_one_computed_by_hand() -> None:
    model = tiny_model()
    batch = with_ends(random_batch(model))

    loss, _ = loss_and_gradients(model, batch, VTRACE)

    assert loss == pytest.approx(loss_by_hand(model, batch, VTRACE), rel=1e-4)


@pytest.mark.parametrize("config", [VTRACE, GAE, dataclasses.replace(VTRACE, normalize_advantages=True)])
def test_rows_that_are_wholly_invalid_have_no_part_in_loss_and_gradients(config: AlgoConfig) -> None:
    model = tiny_model()
    whole = random_batch(model, rows=6)
    valid = whole.valid.clone()
    valid[:, 4:] = False
    garbage = {
        name: torch.where(valid, getattr(whole, name), torch.nan)
        for name in ("rewards", "behavior_log_prob", "behavior_value")
    }
    masked = dataclasses.replace(whole, valid=valid, **fields_of(garbage))

    with_rows, gradients = loss_and_gradients(model, masked, config)
    without_rows, expected = loss_and_gradients(model, masked.columns(slice(0, 4)), config)

    assert with_rows == pytest.approx(without_rows, rel=1e-5)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("config", [VTRACE, GAE])
def test_what_comes_after_a_truncation_row_does_not_reach_what_was_before(config: AlgoConfig) -> None:
    # Step 2 is a truncation row: steps 0 and 1 learn from its value alone, whatever happens in steps 3 and 4.
    model = tiny_model()
    valid = torch.ones(5, 1, dtype=torch.bool)
    valid[2] = False
    batch = random_batch(model, rows=1, valid=valid)
    before = dataclasses.replace(batch, valid=valid & (torch.arange(5)[:, None] < 2))
    losses = []

    for reward_after in (0.0, 1e6):
        rewards = batch.rewards.clone()
        rewards[3:] = reward_after
        objective = LossFunction(model, config)
        changed = dataclasses.replace(batch, rewards=rewards)
        # Targets come of the whole row, the loss of the two steps before.
        targets = objective.gae_targets(changed)
        loss_batch = dataclasses.replace(before, rewards=rewards)
        losses.append(loss_of(model, config, loss_batch, targets=targets).total.item())

    assert losses[0] == losses[1]


def test_a_truncation_row_lends_its_value_to_the_step_before() -> None:
    model = tiny_model()
    valid = torch.tensor([[True], [False]])
    batch = random_batch(model, steps=2, rows=1, valid=valid)
    judged = Judged(model, batch)

    targets = LossFunction(model, GAE).gae_targets(batch)

    assert targets is not None
    expected = batch.rewards[0, 0] + 0.9 * batch.behavior_value[1, 0]
    assert float(targets.returns[0, 0]) == pytest.approx(float(expected), rel=1e-5)
    # V-trace values the final observation by the present weights instead.
    vs, _ = vtrace_of_row(judged, batch, 0, dataclasses.replace(VTRACE, vtrace_rho=1e9))
    ratio = math.exp(judged.log_prob[0][0] - float(batch.behavior_log_prob[0, 0]))
    present = float(batch.rewards[0, 0]) + 0.9 * judged.value[1][0] - judged.value[0][0]
    assert vs[0] == pytest.approx(judged.value[0][0] + ratio * present, rel=1e-5)


def test_gae_targets_are_made_once_from_recorded_values() -> None:
    model = tiny_model()
    batch = random_batch(model)
    objective = LossFunction(model, GAE)
    targets = objective.gae_targets(batch)
    assert targets is not None

    steps = batch.valid.shape[0]
    with torch.no_grad():
        values = [*batch.behavior_value, model({"obs": batch.obs["obs"][-1]}).value]
    advantage = torch.zeros(batch.rows)
    for t in reversed(range(steps)):
        delta = batch.rewards[t] + 0.9 * values[t + 1] - values[t]
        advantage = delta + 0.9 * GAE.gae_lambda * advantage
        torch.testing.assert_close(targets.advantages[t], advantage, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(targets.returns[t], advantage + values[t], rtol=1e-4, atol=1e-5)


def test_gae_targets_do_not_move_with_the_weights_and_vtrace_has_none() -> None:
    model = tiny_model()
    batch = random_batch(model)

    assert LossFunction(model, VTRACE).gae_targets(batch) is None
    targets = LossFunction(model, GAE).gae_targets(batch)

    assert targets is not None
    assert not targets.returns.requires_grad
    part = targets.columns(slice(1, 3))
    assert torch.equal(part.returns, targets.returns[:, 1:3])
    assert torch.equal(part.advantages, targets.advantages[:, 1:3])


def test_the_plain_policy_gradient_is_weighted_by_the_clipped_ratio_once() -> None:
    model = tiny_model()
    batch = random_batch(model)
    config = dataclasses.replace(VTRACE, policy_loss="pg", value_loss_coeff=0.0, exploration_loss="none")
    judged = Judged(model, batch)
    expected = 0.0
    for row in range(batch.rows):
        advantages = vtrace_of_row(judged, batch, row, config)[1]
        for t, advantage in enumerate(advantages):
            ratio = math.exp(judged.log_prob[t][row] - float(batch.behavior_log_prob[t, row]))
            expected -= judged.log_prob[t][row] * min(1.0, ratio) * advantage

    loss, _ = loss_and_gradients(model, batch, config)

    assert loss == pytest.approx(expected / batch.valid.numel(), rel=1e-4)


def test_a_minibatch_without_a_valid_step_has_loss_and_gradients_of_0() -> None:
    model = tiny_model()
    batch = random_batch(model, valid=torch.zeros(5, 4, dtype=torch.bool))

    loss, gradients = loss_and_gradients(model, batch, VTRACE)

    assert loss == 0.0
    assert all(not gradient.any() for gradient in gradients)


def test_statistics_are_of_the_valid_steps() -> None:
    model = tiny_model()
    batch = with_ends(random_batch(model))

    named = loss_of(model, VTRACE, batch).statistics

    judged = Judged(model, batch)
    valid_values = [judged.value[t][r] for t in range(5) for r in range(4) if batch.valid[t, r]]
    assert named["valid_fraction"] == pytest.approx(19 / 20)
    assert named["value_mean"] == pytest.approx(sum(valid_values) / 19, rel=1e-4)
    assert named["kl"] > 0
    assert 0 < named["clip_fraction"] < 1
