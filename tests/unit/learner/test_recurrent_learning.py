"""A policy with memory is learned from rollouts as it lived through them: same states, same resets, same ratios."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig, SamplingConfig
from sfactory.layout import Layout
from sfactory.learner.loss import LossFunction
from tests.support.losses import loss_of
from tests.support.models import model_of, tiny_config
from tests.support.parts import trainer_for
from tests.support.recorded import STEPS, TRUNCATED, record

GAE, VTRACE = AlgoConfig(gamma=0.9, with_vtrace=False), AlgoConfig(gamma=0.9)
CORES: list[dict[str, Any]] = [
    {"use_rnn": True},
    {"use_rnn": True, "rnn_type": "lstm"},
    {"use_rnn": True, "rnn_num_layers": 2, "decoder_mlp_layers": (5,)},
    {"use_rnn": True, "rnn_type": "lstm", "actor_critic_share_weights": False},
]
CORE_NAMES = ["gru", "lstm", "two_layers", "separate"]


@pytest.mark.parametrize(("flag", "steps"), [(-1, 12), (12, 12), (4, 4), (1, 1)])
def test_recurrence_is_the_whole_rollout_unless_it_is_given(flag: int, steps: int) -> None:
    sampling = SamplingConfig(num_workers=1, num_envs_per_worker=2, rollout=12)
    learner = LearnerConfig(batch_size=24, recurrence=flag)

    assert Layout.plan(sampling, learner, "central", state_size=7).recurrence == steps


@pytest.mark.parametrize("fields", CORES, ids=CORE_NAMES)
@pytest.mark.parametrize("recurrence", [1, 3, 6])
@pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
def test_the_first_update_on_what_the_same_weights_have_played_has_ratios_of_1(
    algo: AlgoConfig, recurrence: int, fields: dict[str, Any]
) -> None:
    model = model_of(normalize_returns=True, **fields)
    batch = record(model, tiny_config(normalize_returns=True, **fields), recurrence=recurrence)
    trainer = trainer_for(model, algo, OptimConfig(), LearnerConfig(num_batches_per_epoch=1))

    trainer.train(batch)

    statistics = trainer.statistics()
    assert statistics["kl"] < 1e-9
    assert statistics["clip_fraction"] == 0.0
    # Four episodes were truncated within the rollout, each of which leaves a row that no step was taken in.
    inside = sum(t + 1 < STEPS for t, _ in TRUNCATED)
    assert statistics["valid_fraction"] == pytest.approx(1 - inside / STEPS**2)


@pytest.mark.parametrize("fields", CORES, ids=CORE_NAMES)
@pytest.mark.parametrize("recurrence", [2, 6])
@pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
def test_updates_on_recurrent_data_move_every_weight_and_stay_finite(
    algo: AlgoConfig, recurrence: int, fields: dict[str, Any]
) -> None:
    model = model_of(**fields)
    before = copy.deepcopy(dict(model.named_parameters()))
    learner = LearnerConfig(num_batches_per_epoch=2, num_epochs=2)
    trainer = trainer_for(model, algo, OptimConfig(learning_rate=0.01), learner)

    learned = trainer.train(record(model, tiny_config(**fields), recurrence=recurrence))

    assert (trainer.train_step, trainer.stats.skipped, learned) == (4, 0, STEPS**2 - 4)
    for name, parameter in model.named_parameters():
        assert bool(torch.isfinite(parameter).all()), name
        moved = float((parameter - before[name]).detach().abs().max())
        assert 1e-4 < moved < 0.1, name


def gradients_and_loss(recurrence: int, algo: AlgoConfig) -> tuple[list[Tensor], float]:
    model = model_of(use_rnn=True)
    batch = record(model, tiny_config(use_rnn=True), recurrence=recurrence, terminated=(), truncated=())
    loss = loss_of(model, algo, batch)
    torch.autograd.backward(loss.total)
    gradients = [p.grad.clone() for p in model.tower.core.parameters() if p.grad is not None]
    return gradients, loss.total.item()


@pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
def test_recurrence_changes_how_far_gradients_flow_and_not_the_loss(algo: AlgoConfig) -> None:
    whole, loss = gradients_and_loss(STEPS, algo)
    cut, loss_of_cut = gradients_and_loss(1, algo)

    assert loss_of_cut == pytest.approx(loss, rel=1e-4)
    differences = [float((a - b).norm() / a.norm()) for a, b in zip(whole, cut, strict=True)]
    assert max(differences) > 0.05


@pytest.mark.parametrize("share", [True, False])
def test_gae_values_what_comes_after_the_rollout_with_the_memory_stored_for_it(share: bool) -> None:
    fields: dict[str, Any] = {"use_rnn": True, "actor_critic_share_weights": share}
    model = model_of(**fields)
    batch = record(model, tiny_config(**fields), algo=GAE, terminated=(), truncated=())
    # Rows 1 and 4 begin an episode at obs[T]; the RNN state must be zeroed there.
    is_first = batch.is_first.clone()
    is_first[-1, [1, 4]] = True
    batch = dataclasses.replace(batch, is_first=is_first)

    targets = LossFunction(model, GAE).gae_targets(batch)

    state = batch.rnn_states[-1].clone()
    state[[1, 4]] = 0.0
    with torch.no_grad():
        after = model({"obs": batch.obs["obs"][-1]}, state).value
        forgetful = model({"obs": batch.obs["obs"][-1]}, torch.zeros_like(state)).value
    assert targets is not None
    torch.testing.assert_close(targets.returns[-1], batch.rewards[-1] + 0.9 * after)
    remembers = (after - forgetful).abs() > 1e-3
    assert remembers.tolist() == [True, False, True, True, False, True]


def test_vtrace_values_what_comes_after_the_rollout_with_the_memory_of_the_present_weights() -> None:
    model = model_of(use_rnn=True)
    batch = record(model, tiny_config(use_rnn=True), algo=VTRACE, terminated=(), truncated=())
    # The stored state after the last step is not looked at: the present weights arrive at one of their own.
    states = batch.rnn_states.clone()
    states[-1] = torch.nan

    returns = loss_of(model, VTRACE, dataclasses.replace(batch, rnn_states=states)).returns

    with torch.no_grad():
        after = model({"obs": batch.obs["obs"][-1]}, batch.rnn_states[-1]).value
    torch.testing.assert_close(returns[-1], batch.rewards[-1] + 0.9 * after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
def test_states_of_another_rollout_would_be_noticed(algo: AlgoConfig) -> None:
    model = model_of(use_rnn=True)
    batch = record(model, tiny_config(use_rnn=True), recurrence=2)
    mixed_up = dataclasses.replace(batch, rnn_states=batch.rnn_states.roll(1, dims=1))
    divergences = []
    for one in (batch, mixed_up):
        divergences.append(loss_of(model, algo, one).statistics["kl"])

    assert divergences[0] < 1e-9
    assert divergences[1] > 1e-4
