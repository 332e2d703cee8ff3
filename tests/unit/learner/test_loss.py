"""The loss of a minibatch is that of its equations, also with masked steps and with memory."""

from __future__ import annotations

import copy
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
from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig, SamplingConfig
from sfactory.errors import ConfigError
from sfactory.layout import Layout
from sfactory.learner.batch import Batch
from sfactory.learner.loss import LossFunction
from sfactory.learner.targets import TargetNetwork
from sfactory.planning.plan import plan_run
from sfactory.spec import BoxHead, DiscreteHead, EnvSpec
from tests.support.oracle import expected
from tests.support.parts import (
    STEPS,
    TRUNCATED,
    VECTOR,
    as_acted,
    loss_and_gradients,
    loss_of,
    model_of,
    random_batch,
    record,
    tiny_config,
    tiny_model,
    trainer_for,
)

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
    fields: dict[str, Any] = {name: torch.where(valid, getattr(batch, name), torch.nan) for name in garbage}
    return dataclasses.replace(batch, valid=valid, **fields)


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


EITHER_ALGO = pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
MEMORY: dict[str, Any] = {"use_rnn": True}
CORES: dict[str, dict[str, Any]] = {
    "gru": MEMORY,
    "lstm": {**MEMORY, "rnn_type": "lstm"},
    "two_layers": {**MEMORY, "rnn_num_layers": 2, "decoder_mlp_layers": (5,)},
    "separate": {**MEMORY, "rnn_type": "lstm", "actor_critic_share_weights": False},
}
EVERY_CORE = pytest.mark.parametrize("fields", CORES.values(), ids=CORES.keys())
NO_ENDS: dict[str, Any] = {"terminated": (), "truncated": ()}


@pytest.mark.parametrize(("flag", "steps"), [(-1, 12), (12, 12), (4, 4), (1, 1)])
def test_recurrence_is_the_whole_rollout_unless_it_is_given(flag: int, steps: int) -> None:
    sampling = SamplingConfig(num_workers=1, num_envs_per_worker=2, rollout=12)
    learner = LearnerConfig(batch_size=24, recurrence=flag)

    assert Layout.plan(sampling, learner, "central", state_size=7).recurrence == steps


@EVERY_CORE
@pytest.mark.parametrize("recurrence", [1, 3, 6])
@EITHER_ALGO
def test_the_first_update_by_the_weights_that_acted_has_ratios_of_1_and_moves_every_weight(
    algo: AlgoConfig, recurrence: int, fields: dict[str, Any]
) -> None:
    model = model_of(normalize_returns=True, **fields)
    batch = record(model, tiny_config(normalize_returns=True, **fields), recurrence=recurrence)
    trainer = trainer_for(model, algo, OptimConfig(learning_rate=0.01), LearnerConfig(num_batches_per_epoch=1))
    before = copy.deepcopy(dict(model.named_parameters()))

    learned = trainer.train(batch)

    statistics = trainer.statistics()
    assert statistics["kl"] < 1e-9
    assert statistics["clip_fraction"] == 0.0
    # Four episodes were truncated within the rollout, each of which leaves a row that no step was taken in.
    inside = sum(t + 1 < STEPS for t, _ in TRUNCATED)
    assert statistics["valid_fraction"] == pytest.approx(1 - inside / STEPS**2)
    assert (trainer.stats.skipped, learned) == (0, STEPS**2 - inside)
    for name, parameter in model.named_parameters():
        assert 1e-4 < float((parameter - before[name]).detach().abs().max()) < 1.0, name


@EITHER_ALGO
def test_recurrence_changes_how_far_gradients_flow_and_not_the_loss(algo: AlgoConfig) -> None:
    found = []
    for recurrence in (STEPS, 1):
        model = model_of(**MEMORY)
        batch = record(model, tiny_config(**MEMORY), recurrence=recurrence, **NO_ENDS)
        loss, _ = loss_and_gradients(loss_of(model, algo, batch), model)
        found.append((loss, [p.grad for p in model.get_submodule("tower.core").parameters() if p.grad is not None]))

    (loss, whole), (loss_of_cut, cut) = found
    assert loss_of_cut == pytest.approx(loss, rel=1e-4)
    assert max(float((a - b).norm() / a.norm()) for a, b in zip(whole, cut, strict=True)) > 0.05


@pytest.mark.parametrize("share", [True, False])
def test_gae_values_the_observation_after_the_rollout_with_the_memory_stored_for_it(share: bool) -> None:
    fields = {**MEMORY, "actor_critic_share_weights": share}
    model = model_of(**fields)
    batch = record(model, tiny_config(**fields), algo=GAE, **NO_ENDS)
    # Rows 1 and 4 begin an episode at obs[T]; the RNN state must be zeroed there.
    batch.is_first[-1, [1, 4]] = True

    targets = LossFunction(model, GAE, None, None).gae_targets(batch)

    state = batch.rnn_states[-1].clone()
    state[[1, 4]] = 0.0
    with torch.no_grad():
        after = model({"obs": batch.obs["obs"][-1]}, state).value
        forgetful = model({"obs": batch.obs["obs"][-1]}, torch.zeros_like(state)).value
    assert targets is not None
    torch.testing.assert_close(targets.returns[-1], batch.rewards[-1] + 0.9 * after)
    assert ((after - forgetful).abs() > 1e-3).tolist() == [True, False, True, True, False, True]


def test_vtrace_values_the_observation_after_the_rollout_with_the_memory_of_the_present_weights() -> None:
    model = model_of(**MEMORY)
    batch = record(model, tiny_config(**MEMORY), algo=VTRACE, **NO_ENDS)
    # The stored state after the last step is not looked at: the present weights arrive at one of their own.
    states = batch.rnn_states.clone()
    states[-1] = torch.nan

    returns = loss_of(model, VTRACE, dataclasses.replace(batch, rnn_states=states)).returns

    with torch.no_grad():
        after = model({"obs": batch.obs["obs"][-1]}, batch.rnn_states[-1]).value
    torch.testing.assert_close(returns[-1], batch.rewards[-1] + 0.9 * after, rtol=1e-4, atol=1e-5)
