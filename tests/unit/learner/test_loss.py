"""The loss of a minibatch is that of its equations; a masked step has no part in it and cuts its row in two."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfactory.config.flags import config_of
from sfactory.config.schema import AlgoConfig
from sfactory.errors import ConfigError
from sfactory.learner.batch import Batch
from sfactory.learner.loss import LossFunction
from sfactory.learner.targets import TargetNetwork
from sfactory.planning.plan import plan_run
from sfactory.spec import BoxHead, DiscreteHead, EnvSpec
from tests.support.losses import loss_and_gradients, loss_of
from tests.support.models import model_of, tiny_config
from tests.support.oracle import expected
from tests.support.parts import VECTOR, as_acted, fields_of, random_batch, tiny_model
from tests.support.recorded import record

VTRACE = AlgoConfig(gamma=0.9, normalize_advantages=False, ppo_clip_ratio=0.1, ppo_clip_value=0.3)
GAE = dataclasses.replace(VTRACE, with_vtrace=False)
PLAIN = dataclasses.replace(VTRACE, policy_loss="pg", vtrace_rho=1.5, vtrace_c=0.8)
NORMALIZED = dataclasses.replace(VTRACE, normalize_advantages=True)
JUMP, ARM = DiscreteHead("jump", 3), BoxHead("arm", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))


def with_ends(batch: Batch) -> Batch:
    """Row 1 terminates at step 2; row 2 is truncated by step 1, so that its row 2 is a truncation row."""
    batch.discounts[2, 1] = 0.0
    batch.valid[2, 2] = False
    return batch


@pytest.mark.parametrize("with_vtrace", [True, False], ids=["vtrace", "gae"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy_loss": "pg", "vtrace_rho": 1.5, "vtrace_c": 0.8, "gae_lambda": 0.5},
        {"normalize_advantages": True, "value_loss_coeff": 3.0, "exploration_loss_coeff": 0.4},
        {"kl_loss_coeff": 4.0, "exploration_loss": "none", "exploration_loss_coeff": 100.0},
        {"loss_reduction": "sum", "ppo_clip_value": 0.0, "value_loss_coeff": 0.0},
        {"use_target_net": True, "target_worker_clip": 0.9},
    ],
)
def test_loss_targets_and_statistics_are_those_of_the_papers(fields: dict[str, Any], with_vtrace: bool) -> None:
    config = dataclasses.replace(VTRACE, with_vtrace=with_vtrace, **fields)
    model = tiny_model()
    batch = with_ends(random_batch(model))
    target = TargetNetwork(tiny_model(seed=1), interval=1, tau=1.0) if config.use_target_net else None

    loss = loss_of(model, config, batch, target=target)
    wanted = expected(model, batch, config, None if target is None else target.model)

    valid = batch.valid.numpy()
    assert loss.total.item() == pytest.approx(wanted.loss, rel=1e-4)
    np.testing.assert_allclose(loss.returns.numpy()[valid], wanted.returns[valid], rtol=1e-4, atol=1e-5)
    assert loss.statistics == pytest.approx(wanted.statistics, rel=1e-3, abs=1e-5, nan_ok=True)
    assert wanted.statistics["kl"] > 1e-3


@pytest.mark.parametrize("coefficient", [0.25, 2.0])
def test_symmetric_kl_adds_the_mean_distance_to_the_uniform_policy(coefficient: float) -> None:
    model = model_of()
    batch = with_ends(random_batch(model))
    config = dataclasses.replace(GAE, exploration_loss="symmetric_kl", exploration_loss_coeff=coefficient)

    loss = loss_of(model, config, batch)

    with torch.no_grad():
        params = model({"obs": batch.obs["obs"][:-1].flatten(0, 1)}).dist_params
    p = params.softmax(-1)[batch.valid.flatten()].double()
    distance = float(0.5 * ((p * (p / 0.5).log()).sum(-1) + (0.5 * (0.5 / p).log()).sum(-1)).mean())
    assert distance > 0.01
    wanted = loss.statistics["policy_loss"] + 0.5 * loss.statistics["value_loss"] + coefficient * distance
    assert loss.total.item() == pytest.approx(wanted, rel=1e-4)


def test_symmetric_kl_needs_discrete_actions() -> None:
    config = config_of({"env": "any", "device": "cpu", "exploration_loss": "symmetric_kl"})

    assert plan_run(config, EnvSpec(VECTOR.obs, (JUMP,))).spec.actions == (JUMP,)
    for actions in ((ARM,), (JUMP, ARM)):
        with pytest.raises(ConfigError, match="'arm'"):
            plan_run(config, EnvSpec(VECTOR.obs, actions))


def test_a_minibatch_without_a_valid_step_has_loss_and_gradients_of_0() -> None:
    model = tiny_model()
    batch = random_batch(model, valid=torch.zeros(5, 4, dtype=torch.bool))

    loss, gradients = loss_and_gradients(loss_of(model, VTRACE, batch), model)

    assert loss == 0.0
    assert all(not gradient.any() for gradient in gradients)


def test_the_gradient_of_the_loss_is_that_of_finite_differences() -> None:
    model = model_of(dtype=torch.float64)
    config = dataclasses.replace(GAE, ppo_clip_ratio=0.25, kl_loss_coeff=0.5, ppo_clip_value=0.0)
    batch = random_batch(model_of())._each(lambda x: x.double() if x.is_floating_point() else x)
    targets = LossFunction(model, config, None, None).gae_targets(batch)
    _, gradients = loss_and_gradients(loss_of(model, config, batch, targets=targets), model)
    generator = torch.Generator().manual_seed(4)
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    totals = []

    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=step)
        totals.append(loss_of(model, config, batch, targets=targets).total.item())

    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    assert math.isclose((totals[0] - totals[1]) / 2e-6, slope, rel_tol=1e-4)


def masked(batch: Batch, valid: Tensor, *garbage: str) -> Batch:
    """``batch`` with these steps valid alone, and NaN in the fields ``garbage`` wherever a step is not."""
    fields = {name: torch.where(valid, getattr(batch, name), torch.nan) for name in garbage}
    return dataclasses.replace(batch, valid=valid, **fields_of(fields))


def pieces_of(batch: Batch) -> list[Batch]:
    """Each stretch of valid steps of each row as a rollout of its own, followed by the observation after it."""
    pieces = []
    for row in range(batch.rows):
        column = batch.columns(slice(row, row + 1))
        steps = [bool(valid) for valid in batch.valid[:, row]]
        starts = [t for t, valid in enumerate(steps) if valid and (t == 0 or not steps[t - 1])]
        for start in starts:
            end = next((t for t in range(start, len(steps)) if not steps[t]), len(steps))
            piece = column._each(lambda tensor, start=start, end=end: tensor[start:end])  # type: ignore[misc]
            obs = {key: leaf[start : end + 1] for key, leaf in column.obs.items()}
            first = column.is_first[start : end + 1]
            pieces.append(dataclasses.replace(piece, obs=obs, is_first=first, rnn_states=column.rnn_states))
    return pieces


@settings(max_examples=15, deadline=None)
@given(cells=st.lists(st.booleans(), min_size=18, max_size=18).filter(any))
@pytest.mark.parametrize("config", [VTRACE, GAE, PLAIN], ids=["vtrace", "gae", "pg"])
def test_the_loss_of_a_batch_with_masked_steps_is_that_of_the_stretches_between_them(
    config: AlgoConfig, cells: list[bool]
) -> None:
    model = model_of()
    valid = torch.tensor(cells).view(6, 3)
    batch = random_batch(model, steps=6, rows=3)
    values = as_acted(model, batch).behavior_value  # so that GAE bootstraps from them after a stretch
    batch = masked(dataclasses.replace(batch, behavior_value=values), valid, "rewards", "behavior_log_prob")

    loss, gradients = loss_and_gradients(loss_of(model, config, batch), model)

    expected, expected_gradients = 0.0, [torch.zeros_like(gradient) for gradient in gradients]
    for piece in pieces_of(batch):
        share = piece.valid.numel() / int(valid.sum())
        of_piece, gradients_of_piece = loss_and_gradients(loss_of(model, config, piece), model)
        expected += share * of_piece
        for total, gradient in zip(expected_gradients, gradients_of_piece, strict=True):
            total += share * gradient
    assert loss == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_rnn": True},
        {"use_rnn": True, "rnn_type": "lstm", "rnn_num_layers": 2},
        {"use_rnn": True, "actor_critic_share_weights": False},
    ],
    ids=["none", "gru", "lstm", "separate"],
)
@pytest.mark.parametrize("recurrence", [2, 6])
@pytest.mark.parametrize("config", [VTRACE, GAE, NORMALIZED], ids=["vtrace", "gae", "normalized"])
def test_rows_that_are_wholly_masked_have_no_part_in_the_loss(
    config: AlgoConfig, recurrence: int, fields: dict[str, Any]
) -> None:
    model = model_of(**fields)
    whole = record(model, tiny_config(**fields), recurrence=recurrence)
    valid = whole.valid.clone()
    valid[:, 4:] = False
    batch = masked(whole, valid, "rewards", "behavior_log_prob", "behavior_value")

    loss, gradients = loss_and_gradients(loss_of(model, config, batch), model)
    expected, expected_gradients = loss_and_gradients(loss_of(model, config, batch.columns(slice(0, 4))), model)

    assert loss == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert any(bool(gradient.any()) for gradient in gradients)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("config", [VTRACE, GAE], ids=["vtrace", "gae"])
def test_a_masked_step_is_remembered_though_it_does_not_teach(config: AlgoConfig) -> None:
    # Memory after the masked step is what it was when acting: the ratio stays 1 in the steps that follow.
    model = model_of(use_rnn=True)
    batch = record(model, tiny_config(use_rnn=True), terminated=(), truncated=())
    valid = batch.valid.clone()
    valid[2] = False

    statistics = loss_of(model, config, masked(batch, valid, "rewards", "behavior_log_prob")).statistics

    assert statistics["kl"] < 1e-6
    assert statistics["valid_fraction"] == pytest.approx(5 / 6)
