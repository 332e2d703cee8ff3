"""Every combination of targets, policy loss, clips, weighting and reduction agrees with a reference in numpy."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import Any

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig
from sfactory.learner.batch import Batch
from sfactory.learner.staging import Staging
from sfactory.learner.targets import TargetNetwork
from sfactory.model.actor_critic import ActorCritic
from tests.support.oracle import expected
from tests.support.parts import (
    CPU,
    VECTOR,
    loss_and_gradients,
    loss_of,
    model_of,
    random_batch,
    record,
    small_layout,
    tiny_config,
)

BASE = AlgoConfig(gamma=0.9, ppo_clip_ratio=0.1, ppo_clip_value=0.3, kl_loss_coeff=0.2)


def of(**fields: Any) -> AlgoConfig:
    return dataclasses.replace(BASE, **fields)


def mixed_batch(model: ActorCritic, seed: int, *, steps: int = 6, rows: int = 5) -> Batch:
    """Steps of far-off policies, terminations, invalid steps with NaN in what was recorded there, and replayed rows."""
    generator = torch.Generator().manual_seed(seed)
    batch = random_batch(model, steps=steps, rows=rows, seed=seed)
    valid = torch.rand(steps, rows, generator=generator) > 0.2
    terminated = torch.rand(steps, rows, generator=generator) < 0.15
    replayed = torch.zeros(steps, rows, dtype=torch.bool)
    replayed[:, rows - 2 :] = True
    noise = 0.7 * torch.randn(steps, rows, generator=generator)
    return dataclasses.replace(
        batch,
        discounts=torch.where(terminated, 0.0, batch.discounts),
        behavior_log_prob=torch.where(valid, (batch.behavior_log_prob + noise).clamp(max=-0.01), torch.nan),
        rewards=torch.where(valid, batch.rewards, torch.nan),
        taken=valid,
        valid=valid,
        replayed=replayed,
    )


def moved(model: ActorCritic, seed: int = 9) -> ActorCritic:
    """A model with slightly other policy and values."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return other


FLAGS_OF_VTRACE: list[dict[str, Any]] = [
    *({"vtrace_rho": clip} for clip in (None, 0.5, 2.5)),
    *({"vtrace_pg_rho": clip} for clip in (None, 0.5)),
    *({"vtrace_c": clip} for clip in (None, 0.5)),
    {"vtrace_rho": None, "vtrace_pg_rho": None, "vtrace_c": None},
    *({"vtrace_lambda": factor} for factor in (0.0, 0.7)),
    *({"vtrace_adv_weighting": weighting} for weighting in ("rho", "none")),
    {"vtrace_adv_weighting": "rho", "vtrace_pg_rho": 0.5},
]
COMBINED = ("with_vtrace", "policy_loss", "normalize_advantages", "loss_reduction")
CASES: list[dict[str, Any]] = [
    *(
        dict(zip(COMBINED, values, strict=True))
        for values in itertools.product((True, False), ("pg", "ppo_clip"), (True, False), ("mean", "sum"))
    ),
    *({**flags, "policy_loss": loss} for flags in FLAGS_OF_VTRACE for loss in ("pg", "ppo_clip")),
    *(
        {"use_target_net": True, "target_worker_clip": clip, name: value}
        for clip in (0.7, 2.0)
        for name, value in (("gamma", 0.9), ("with_vtrace", False), ("policy_loss", "pg"))
    ),
]


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_the_objective_agrees_with_the_reference(fields: dict[str, Any]) -> None:
    model = model_of()
    target = TargetNetwork(moved(model), interval=1, tau=1.0) if "use_target_net" in fields else None
    config = of(**fields)

    for seed in range(3):
        batch = mixed_batch(model, seed)
        found = loss_of(model, config, batch, target=target)
        wanted = expected(model, batch, config, None if target is None else target.model)
        assert found.total.item() == pytest.approx(wanted.loss, rel=1e-4, abs=1e-5)
        returns = torch.from_numpy(wanted.returns).float()
        torch.testing.assert_close(found.returns[batch.valid], returns[batch.valid], rtol=1e-4, atol=1e-4)
        assert found.statistics == pytest.approx(wanted.statistics, rel=1e-3, abs=1e-4, nan_ok=True)
    torch.autograd.backward(found.total)
    assert target is None or all(parameter.grad is None for parameter in target.model.parameters())


@pytest.mark.parametrize("with_vtrace", [True, False])
@pytest.mark.parametrize("policy_loss", ["pg", "ppo_clip"])
def test_a_sum_is_the_mean_times_the_number_of_valid_steps_in_value_and_gradient(
    with_vtrace: bool, policy_loss: str
) -> None:
    model = model_of()
    batch = mixed_batch(model, seed=2)
    steps = int(batch.valid.sum())

    config = of(with_vtrace=with_vtrace, policy_loss=policy_loss)
    mean, gradients = loss_and_gradients(loss_of(model, config, batch), model)
    summed = dataclasses.replace(config, loss_reduction="sum")
    total, sums = loss_and_gradients(loss_of(model, summed, batch), model)

    masked = dataclasses.replace(batch, valid=torch.zeros_like(batch.valid))
    nothing, zeros = loss_and_gradients(loss_of(model, summed, masked), model)

    assert steps < batch.valid.numel()
    assert nothing == 0.0
    assert not any(gradient.any() for gradient in zeros)
    assert total == pytest.approx(steps * mean, rel=1e-5)
    for one, other in zip(gradients, sums, strict=True):
        torch.testing.assert_close(other, steps * one, rtol=1e-4, atol=1e-5)


def without_last_step(batch: Batch) -> Batch:
    """The rollouts one step shorter, so that what was observed last is followed by nothing."""
    cut: dict[str, Any] = {name: value[:-1] for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}
    cut["obs"], cut["actions"] = ({k: leaf[:-1] for k, leaf in part.items()} for part in (batch.obs, batch.actions))
    return dataclasses.replace(batch, **{**cut, "rnn_states": batch.rnn_states})


@pytest.mark.parametrize("policy_loss", ["pg", "ppo_clip"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_dropped_last_step_lends_its_value_and_is_otherwise_not_there(policy_loss: str, reduction: str) -> None:
    model = model_of()
    config = of(policy_loss=policy_loss, loss_reduction=reduction)
    whole = record(model, tiny_config(), algo=config)
    dropped = record(model, tiny_config(), algo=dataclasses.replace(config, vtrace_drop_last_ts=True))

    found, gradients = loss_and_gradients(loss_of(model, config, dropped), model)
    wanted, wanted_gradients = loss_and_gradients(loss_of(model, config, without_last_step(whole)), model)

    assert not dropped.taken[-1].any()
    assert found == pytest.approx(wanted, rel=1e-5)
    for one, other in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("with_vtrace", [True, False])
def test_dropping_the_last_step_is_a_matter_of_vtrace_alone_and_leaves_staging_as_it_is(with_vtrace: bool) -> None:
    staging = Staging(VECTOR, small_layout(), pin=False)
    staging.scalars["valid"].fill_(True)

    batch = Batch.of(staging, of(with_vtrace=with_vtrace, vtrace_drop_last_ts=True), LearnerConfig(), 0, CPU)

    assert batch.valid.tolist() == [[True] * 4] * 3 + [[not with_vtrace] * 4]
    assert bool(staging.scalars["valid"].all())
