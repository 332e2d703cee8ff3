"""The loss of a minibatch is the one that its equations give, and invalid rows have no part in it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.config.flags import config_of
from sfactory.config.schema import AlgoConfig
from sfactory.errors import ConfigError
from sfactory.learner.batch import Batch
from sfactory.learner.loss import LossFunction
from sfactory.learner.targets import TargetNetwork
from sfactory.model.actor_critic import ActorCritic
from sfactory.planning.plan import plan_run
from sfactory.spec import BoxHead, DiscreteHead, EnvSpec
from tests.support.losses import loss_and_gradients, loss_of
from tests.support.models import model_of
from tests.support.oracle import expected
from tests.support.parts import VECTOR, fields_of, random_batch, tiny_model

VTRACE = AlgoConfig(gamma=0.9, normalize_advantages=False, ppo_clip_ratio=0.1, ppo_clip_value=0.3)
GAE = dataclasses.replace(VTRACE, with_vtrace=False)
JUMP, ARM = DiscreteHead("jump", 3), BoxHead("arm", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))


def with_ends(batch: Batch) -> Batch:
    """Row 1 terminates at step 2; row 2 is truncated by step 1, so that its row 2 is a truncation row."""
    discounts, valid = batch.discounts.clone(), batch.valid.clone()
    discounts[2, 1] = 0.0
    valid[2, 2] = False
    return dataclasses.replace(batch, discounts=discounts, valid=valid)


@pytest.mark.parametrize("with_vtrace", [True, False], ids=["vtrace", "gae"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy_loss": "pg"},
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


@pytest.mark.parametrize(("actions", "refused"), [((JUMP,), ""), ((ARM,), "'arm'"), ((JUMP, ARM), "'arm'")])
def test_symmetric_kl_needs_discrete_actions(actions: tuple[DiscreteHead | BoxHead, ...], refused: str) -> None:
    config = config_of({"env": "any", "device": "cpu", "exploration_loss": "symmetric_kl"})
    spec = EnvSpec(VECTOR.obs, actions)

    if refused:
        with pytest.raises(ConfigError, match=refused):
            plan_run(config, spec)
    else:
        assert plan_run(config, spec).spec is spec


def loss_in_part(model: ActorCritic, config: AlgoConfig, whole: Batch, rows: int) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients of the first ``rows`` rows; GAE targets, if any, are of the whole batch."""
    targets = LossFunction(model, config).gae_targets(whole)
    which = slice(0, rows)
    part = None if targets is None else targets.columns(which)
    return loss_and_gradients(loss_of(model, config, whole.columns(which), targets=part), model)


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

    with_rows, gradients = loss_in_part(model, config, masked, rows=6)
    without_rows, others = loss_in_part(model, config, masked, rows=4)

    assert with_rows == pytest.approx(without_rows, rel=1e-5)
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)


def test_targets_of_gae_have_no_gradient_and_vtrace_has_none_for_a_dataset() -> None:
    model = tiny_model()
    batch = random_batch(model)

    assert LossFunction(model, VTRACE).gae_targets(batch) is None
    targets = LossFunction(model, GAE).gae_targets(batch)

    assert targets is not None
    assert not targets.returns.requires_grad
    part = targets.columns(slice(1, 3))
    assert torch.equal(part.returns, targets.returns[:, 1:3])
    assert torch.equal(part.advantages, targets.advantages[:, 1:3])


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
    targets = LossFunction(model, config).gae_targets(batch)
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
