"""A policy with memory learns from rollouts with the states, resets and ratios of acting."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig, SamplingConfig
from sfactory.layout import Layout
from sfactory.learner.loss import LossFunction
from tests.support.losses import loss_and_gradients, loss_of
from tests.support.models import model_of, tiny_config
from tests.support.parts import trainer_for
from tests.support.recorded import STEPS, TRUNCATED, record

GAE, VTRACE = AlgoConfig(gamma=0.9, with_vtrace=False), AlgoConfig(gamma=0.9)
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


@EITHER_ALGO
def test_states_of_another_rollout_would_be_noticed(algo: AlgoConfig) -> None:
    model = model_of(**MEMORY)
    batch = record(model, tiny_config(**MEMORY), recurrence=2)

    mixed_up = dataclasses.replace(batch, rnn_states=batch.rnn_states.roll(1, dims=1))

    assert loss_of(model, algo, mixed_up).statistics["kl"] > 1e-4
