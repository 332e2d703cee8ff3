"""The loss of a minibatch is that of its equations, with masked and replayed steps, and with memory."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from sfactory.action_heads import BoxHead, DiscreteHead
from sfactory.config.flags import config_of
from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig, SamplingConfig
from sfactory.errors import ConfigError
from sfactory.layout import Layout
from sfactory.learner.batch import Batch
from sfactory.learner.loss import LossFunction
from sfactory.learner.minibatches import Minibatch
from sfactory.learner.staging import Staging
from sfactory.model.actor_critic import ActorCritic
from sfactory.planning.plan import plan_run
from sfactory.spec import EnvSpec
from tests.support.oracle import expected
from tests.support.parts import (
    CPU,
    STEPS,
    TRUNCATED,
    VECTOR,
    loss_and_gradients,
    loss_of,
    model_of,
    moved_target,
    random_batch,
    record,
    small_layout,
    tiny_config,
    trainer_for,
)

VTRACE = AlgoConfig(gamma=0.9, normalize_advantages=False, ppo_clip_ratio=0.1, ppo_clip_value=0.3)
GAE = dataclasses.replace(VTRACE, with_vtrace=False)
NORMALIZED = dataclasses.replace(VTRACE, normalize_advantages=True)
EITHER_ALGO = pytest.mark.parametrize("algo", [GAE, VTRACE], ids=["gae", "vtrace"])
MEMORY: dict[str, Any] = {"use_rnn": True}
CORES: dict[str, dict[str, Any]] = {
    "none": {},
    "gru": MEMORY,
    "two_layers_of_lstm": {**MEMORY, "rnn_type": "lstm", "rnn_num_layers": 2, "decoder_mlp_layers": (5,)},
    "separate": {**MEMORY, "actor_critic_share_weights": False},
}
EVERY_CORE = pytest.mark.parametrize("fields", CORES.values(), ids=CORES.keys())
JUMP, ARM = DiscreteHead("jump", 3), BoxHead("arm", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))


def of(**fields: Any) -> AlgoConfig:
    return AlgoConfig(**{"gamma": 0.9, "ppo_clip_ratio": 0.1, "ppo_clip_value": 0.3, "kl_loss_coeff": 0.2, **fields})


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
    {"with_vtrace": False, "gae_lambda": 0.5},
    {"ppo_clip_low": 0.8, "ppo_clip_ratio": 0.2},
    {"ppo_clip_value": 0.0, "value_loss_coeff": 3.0, "exploration_loss_coeff": 0.4},
    {"exploration_loss": "symmetric_kl", "exploration_loss_coeff": 2.0, "loss_reduction": "sum"},
    {"kl_loss_coeff": 4.0, "exploration_loss": "none", "exploration_loss_coeff": 100.0},
]


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_the_objective_agrees_with_the_reference(fields: dict[str, Any]) -> None:
    model, config = model_of(), of(**fields)
    target = moved_target(model, config)

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


def test_symmetric_kl_needs_discrete_actions() -> None:
    config = config_of({"env": "any", "device": "cpu", "exploration_loss": "symmetric_kl"})

    assert plan_run(config, EnvSpec(VECTOR.obs, (JUMP,))).spec.actions == (JUMP,)
    for actions in ((ARM,), (JUMP, ARM)):
        with pytest.raises(ConfigError, match="'arm'"):
            plan_run(config, EnvSpec(VECTOR.obs, actions))


def test_the_gradient_of_the_loss_is_that_of_finite_differences() -> None:
    model = model_of(dtype=torch.float64)
    config = dataclasses.replace(GAE, ppo_clip_ratio=0.25, kl_loss_coeff=0.5, ppo_clip_value=0.0)
    batch = mixed_batch(model_of(), seed=0).map(lambda x: x.double() if x.is_floating_point() else x)
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


@EVERY_CORE
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


def test_where_torch_compile_fails_it_is_said_once_and_the_loss_is_computed_without_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise TorchDynamoException("no compiler\nand much more")

    monkeypatch.setattr(torch, "compile", lambda whole: failing)
    model, losses = model_of(), []
    minibatch = Minibatch(mixed_batch(model, seed=0), None)
    for torch_compile in (False, True):
        objective = LossFunction(model, VTRACE, None, None, torch_compile)
        for _ in range(2):
            (part,) = objective.parts(minibatch, 0, exploration=0.01, kl=None)
            losses.append(part.loss.item())

    assert len(set(losses)) == 1
    assert [text.partition("since")[2] for text in caplog.messages] == [" it failed: no compiler"]
