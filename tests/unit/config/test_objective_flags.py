"""Every combination of targets, policy loss, clips, weighting and reduction is the one that is written down."""

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
from tests.support.losses import loss_and_gradients, loss_of
from tests.support.models import model_of, tiny_config
from tests.support.oracle import expected
from tests.support.parts import VECTOR, random_batch, small_layout
from tests.support.recorded import CPU, record

BASE = AlgoConfig(gamma=0.9, ppo_clip_ratio=0.1, ppo_clip_value=0.3, kl_loss_coeff=0.2)
# IMPALA, APPO, A2C without a correction, PPO.
FOUR = list(itertools.product((True, False), ("pg", "ppo_clip")))


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


def assert_as_written(
    model: ActorCritic, batch: Batch, config: AlgoConfig, target: TargetNetwork | None = None
) -> None:
    found = loss_of(model, config, batch, target=target)
    wanted = expected(model, batch, config, None if target is None else target.model)
    assert found.total.item() == pytest.approx(wanted.loss, rel=1e-4, abs=1e-5)
    returns = torch.from_numpy(wanted.returns).float()
    torch.testing.assert_close(found.returns[batch.valid], returns[batch.valid], rtol=1e-4, atol=1e-4)
    assert found.statistics == pytest.approx(wanted.statistics, rel=1e-3, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("with_vtrace", "policy_loss"), FOUR)
def test_all_four_combinations_of_targets_and_policy_loss_are_what_is_written_down(
    with_vtrace: bool, policy_loss: str, normalize: bool, reduction: str, seed: int
) -> None:
    model = model_of()
    config = of(
        with_vtrace=with_vtrace,
        policy_loss=policy_loss,
        normalize_advantages=normalize,
        loss_reduction=reduction,
    )

    assert_as_written(model, mixed_batch(model, seed), config)


@pytest.mark.parametrize("fields", [{}, {"policy_loss": "pg"}], ids=["ppo_clip", "pg"])
@pytest.mark.parametrize(
    "flags",
    [
        {"vtrace_rho": None},
        {"vtrace_rho": 0.5},
        {"vtrace_rho": 2.5},
        {"vtrace_pg_rho": None},
        {"vtrace_pg_rho": 0.5},
        {"vtrace_c": None},
        {"vtrace_c": 0.5},
        {"vtrace_rho": None, "vtrace_pg_rho": None, "vtrace_c": None},
        {"vtrace_lambda": 0.0},
        {"vtrace_lambda": 0.7},
        {"vtrace_adv_weighting": "rho"},
        {"vtrace_adv_weighting": "none"},
        {"vtrace_adv_weighting": "rho", "vtrace_pg_rho": 0.5},
    ],
    ids=str,
)
def test_each_flag_of_vtrace_reaches_the_loss(flags: dict[str, Any], fields: dict[str, Any]) -> None:
    model = model_of()

    assert_as_written(model, mixed_batch(model, seed=4), of(**fields, **flags))


@pytest.mark.parametrize(
    ("flags", "changes_returns"),
    [
        ({"vtrace_rho": 0.5}, True),
        ({"vtrace_c": 0.5}, True),
        ({"vtrace_lambda": 0.5}, True),
        ({"vtrace_pg_rho": 0.5}, False),
        ({"vtrace_adv_weighting": "none"}, False),
    ],
    ids=str,
)
def test_a_flag_of_vtrace_changes_the_loss_and_those_of_targets_the_targets(
    flags: dict[str, Any], changes_returns: bool
) -> None:
    model = model_of()
    batch = mixed_batch(model, seed=4)

    one, other = (loss_of(model, of(policy_loss="pg", **more), batch) for more in ({}, flags))

    assert abs(one.total.item() - other.total.item()) > 1e-3
    assert torch.equal(one.returns, other.returns) is not changes_returns


def test_automatic_weighting_is_rho_for_the_plain_gradient_and_none_for_the_surrogate() -> None:
    model = model_of()
    batch = mixed_batch(model, seed=4)

    def total(policy_loss: str, weighting: str) -> float:
        return loss_of(model, of(policy_loss=policy_loss, vtrace_adv_weighting=weighting), batch).total.item()

    assert total("pg", "auto") == total("pg", "rho") != total("pg", "none")
    assert total("ppo_clip", "auto") == total("ppo_clip", "none") != total("ppo_clip", "rho")


@pytest.mark.parametrize(("with_vtrace", "policy_loss"), FOUR)
def test_a_sum_is_the_mean_times_the_number_of_valid_steps_in_value_and_gradient(
    with_vtrace: bool, policy_loss: str
) -> None:
    model = model_of()
    batch = mixed_batch(model, seed=2)
    steps = int(batch.valid.sum())

    mean, gradients = loss_and_gradients(
        loss_of(model, of(with_vtrace=with_vtrace, policy_loss=policy_loss), batch), model
    )
    total, sums = loss_and_gradients(
        loss_of(model, of(with_vtrace=with_vtrace, policy_loss=policy_loss, loss_reduction="sum"), batch), model
    )

    assert steps < batch.valid.numel()
    assert total == pytest.approx(steps * mean, rel=1e-5)
    for one, other in zip(gradients, sums, strict=True):
        torch.testing.assert_close(other, steps * one, rtol=1e-4, atol=1e-5)


def test_a_batch_of_twice_as_many_steps_has_the_same_mean_gradient_and_twice_the_sum() -> None:
    model = model_of()
    batch = mixed_batch(model, seed=2)
    twice = batch.columns(torch.arange(batch.rows).repeat(2))

    def norm(one: Batch, reduction: str) -> float:
        _, gradients = loss_and_gradients(loss_of(model, of(loss_reduction=reduction), one), model)
        return float(torch.cat([gradient.flatten() for gradient in gradients]).norm())

    assert norm(twice, "mean") == pytest.approx(norm(batch, "mean"), rel=1e-4)
    assert norm(twice, "sum") == pytest.approx(2.0 * norm(batch, "sum"), rel=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_minibatch_without_a_valid_step_has_a_loss_of_0_in_either_reduction(reduction: str) -> None:
    model = model_of()
    batch = dataclasses.replace(random_batch(model), valid=torch.zeros(5, 4, dtype=torch.bool))

    loss, gradients = loss_and_gradients(loss_of(model, of(loss_reduction=reduction), batch), model)

    assert loss == 0.0
    assert all(not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("worker_clip", [0.7, 2.0])
@pytest.mark.parametrize("fields", [{}, {"with_vtrace": False}, {"policy_loss": "pg"}], ids=str)
def test_with_a_target_network_weights_are_its_own_and_the_ratio_is_that_of_impact(
    fields: dict[str, Any], worker_clip: float, seed: int
) -> None:
    model = model_of()
    target = TargetNetwork(moved(model), interval=1, tau=1.0)
    config = of(use_target_net=True, target_worker_clip=worker_clip, **fields)

    assert_as_written(model, mixed_batch(model, seed), config, target)


def test_with_a_target_network_that_equals_the_policy_that_acted_impact_is_appo() -> None:
    model = model_of()
    acted = moved(model)
    batch = random_batch(acted, rows=6)
    with torch.no_grad():
        flat = acted({"obs": batch.obs["obs"][:-1].flatten(0, 1)})
        log_prob = acted.distribution(flat.dist_params).log_prob({"action": batch.actions["action"].flatten()})
    batch = dataclasses.replace(batch, behavior_log_prob=log_prob.view_as(batch.valid))
    target = TargetNetwork(acted, interval=1, tau=1.0)

    # With weights of 1 V-trace looks at rewards and values alone.
    impact = loss_of(model, of(use_target_net=True), batch, target=target)
    ratios_alone = of(vtrace_rho=1e-9, vtrace_c=1e-9, value_loss_coeff=0.0, normalize_advantages=False)
    one = loss_of(model, dataclasses.replace(ratios_alone, use_target_net=True), batch, target=target)
    other = loss_of(model, ratios_alone, batch)

    for name in ("clip_fraction", "ratio_mean", "kl"):
        assert impact.statistics[name] == pytest.approx(other.statistics[name], rel=1e-4), name
    assert one.total.item() == pytest.approx(other.total.item(), rel=1e-4)


def test_no_gradient_reaches_the_target_network() -> None:
    model = model_of()
    target = TargetNetwork(moved(model), interval=1, tau=1.0)

    torch.autograd.backward(loss_of(model, of(use_target_net=True), mixed_batch(model, 1), target=target).total)

    assert all(parameter.grad is None for parameter in target.model.parameters())
    assert any(bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None)


def without_last_step(batch: Batch) -> Batch:
    """The rollouts one step shorter, so that what was observed last is followed by nothing."""
    tensors = {field.name: getattr(batch, field.name) for field in dataclasses.fields(Batch)}
    cut: dict[str, Any] = {name: value[:-1] for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    cut["obs"] = {key: leaf[:-1] for key, leaf in batch.obs.items()}
    cut["actions"] = {key: leaf[:-1] for key, leaf in batch.actions.items()}
    return Batch(**cut | {"rnn_states": batch.rnn_states})


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


def test_a_reward_of_the_last_step_moves_every_target_unless_that_step_is_dropped() -> None:
    model = model_of()
    returns = {}
    for drop in (False, True):
        config = of(vtrace_drop_last_ts=drop)
        batch = record(model, tiny_config(), algo=config, terminated=(), truncated=())
        rewards = batch.rewards.clone()
        rewards[-1] += 100.0
        changed = dataclasses.replace(batch, rewards=rewards)
        difference = loss_of(model, config, changed).returns - loss_of(model, config, batch).returns
        returns[drop] = difference[:-1].abs().min(), difference[:-1].abs().max()

    assert float(returns[False][0]) > 1.0
    assert float(returns[True][1]) == 0.0


@pytest.mark.parametrize("with_vtrace", [True, False])
def test_dropping_the_last_step_is_a_matter_of_vtrace_alone_and_leaves_staging_as_it_is(with_vtrace: bool) -> None:
    staging = Staging(VECTOR, small_layout(), pin=False)
    staging.scalars["valid"].fill_(True)

    batch = Batch.of(staging, of(with_vtrace=with_vtrace, vtrace_drop_last_ts=True), LearnerConfig(), 0, CPU)

    assert batch.valid.tolist() == [[True] * 4] * 3 + [[not with_vtrace] * 4]
    assert bool(staging.scalars["valid"].all())
