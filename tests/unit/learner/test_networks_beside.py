"""A target network follows the policy by whole steps; an auxiliary loss is trained along and never published."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, ModelConfig, OptimConfig
from sfactory.errors import CheckpointError
from sfactory.learner.auxiliary import AuxiliaryTask, make_auxiliary
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.targets import TargetNetwork
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.cpc import CpcAction
from sfactory.model.flat_state import flat_bytes
from tests.support.equality import changed, copied
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR, loss_of, model_of, random_batch, record, tiny_config, trainer_for

YES, NO = torch.tensor(True), torch.tensor(False)
IMPACT = AlgoConfig(use_target_net=True, target_update_interval=3)


def trainer_of(algo: AlgoConfig = IMPACT, seed: int = 0) -> Trainer:
    model = model_of(seed=seed, normalize_input=True, normalize_returns=True)
    return trainer_for(model, algo, OptimConfig(learning_rate=0.01))


def is_copy(target: TargetNetwork | None, model: ActorCritic) -> bool:
    assert target is not None
    return not changed(target.model, dict(model.state_dict()))


def disturbed(model: ActorCritic, by: float) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(by)


@pytest.mark.parametrize(("interval", "updates"), [(1, 5), (2, 5), (3, 7), (10, 9)])
def test_it_begins_as_a_copy_and_moves_once_every_interval_updates(interval: int, updates: int) -> None:
    model = model_of(normalize_input=True)
    target = TargetNetwork(model, interval, tau=1.0)
    assert is_copy(target, model)
    assert not any(parameter.requires_grad for parameter in target.model.parameters())
    moved = []

    for _ in range(updates):
        disturbed(model, 1.0)
        assert not is_copy(target, model)
        target.after_update(NO)  # updates that were skipped do not count
        assert not is_copy(target, model)
        target.after_update(YES)
        moved.append(is_copy(target, model))

    assert moved == [number % interval == 0 for number in range(1, updates + 1)]
    assert int(target.moves) == updates // interval


@pytest.mark.parametrize("tau", [0.1, 0.75, 1.0])
def test_weights_are_mixed_by_tau_and_buffers_are_taken_over_whole(tau: float) -> None:
    model = model_of(dtype=torch.float64, normalize_input=True, normalize_returns=True)
    target = TargetNetwork(model, interval=2, tau=tau)
    old = copied(model)
    disturbed(model, 3.0)
    new = copied(model)

    for _ in range(4):
        target.after_update(YES)

    parameters, buffers = dict(target.model.named_parameters()), dict(target.model.named_buffers())
    assert (len(parameters) > 4, len(buffers)) == (True, 10)
    for name, parameter in parameters.items():
        once = (1.0 - tau) * old[name] + tau * new[name]
        torch.testing.assert_close(parameter.data, (1.0 - tau) * once + tau * new[name], rtol=1e-14, atol=1e-14)
    for name, buffer in buffers.items():
        assert torch.equal(buffer, new[name]), name


def test_updates_without_a_valid_step_and_skipped_ones_do_not_move_it() -> None:
    trainer = trainer_of(dataclasses.replace(IMPACT, target_update_interval=1))
    batch = random_batch(trainer.model)
    nothing = torch.zeros_like(batch.valid)
    trainer.train(batch)

    trainer.train(dataclasses.replace(batch, taken=nothing, valid=nothing))
    trainer.train(dataclasses.replace(batch, rewards=torch.full_like(batch.rewards, torch.nan)))

    assert trainer.stats.skipped == 1
    assert trainer.target is not None
    assert int(trainer.target.moves) == 1


def test_it_sees_the_first_observations_as_the_policy_does() -> None:
    # The policy's statistics begin with the first dataset, before it is learned from.
    trainer = trainer_of()
    batch = random_batch(trainer.model)

    trainer.open(dataclasses.replace(batch, obs={"obs": 50.0 + 7.0 * batch.obs["obs"]}))

    assert is_copy(trainer.target, trainer.model)


@pytest.mark.parametrize(("saved", "wanted"), [(AlgoConfig(), IMPACT), (IMPACT, AlgoConfig())], ids=["new", "off"])
def test_resumed_run_may_begin_or_end_to_use_it(saved: AlgoConfig, wanted: AlgoConfig) -> None:
    first, resumed = trainer_of(saved), trainer_of(wanted, seed=1)
    first.train(random_batch(first.model))

    restore(copy.deepcopy(payload_of(first, Progress())), "here", resumed, Progress())

    assert not changed(resumed.model, copied(first.model))
    assert is_copy(resumed.target, first.model) if wanted.use_target_net else resumed.target is None


CPC = AlgoConfig(use_cpc=True, cpc_forward_steps=3, cpc_time_subsample=4)
MEMORY: dict[str, Any] = {"use_rnn": True}
ALGOS = pytest.mark.parametrize("algo", [CPC, dataclasses.replace(CPC, with_vtrace=False)], ids=["vtrace", "gae"])


def auxiliary_of(model: ActorCritic) -> CpcAction:
    torch.manual_seed(3)
    made = make_auxiliary(model, CPC, ModelConfig())
    assert isinstance(made, CpcAction)
    return made


def auxiliary_trainer(algo: AlgoConfig = CPC) -> Trainer:
    return trainer_for(model_of(**MEMORY), algo, OptimConfig(learning_rate=0.01))


def batch_of() -> Batch:
    return record(model_of(**MEMORY), tiny_config(**MEMORY))


def test_first_weights_of_the_network_are_the_same_with_and_without() -> None:
    def published(**flags: Any) -> Tensor:
        learner = LoneLearner(**MEMORY, rnn_size=6, **flags)
        host = torch.zeros(flat_bytes(ActorCritic(VECTOR, learner.config.model)), dtype=torch.uint8)
        learner.shared.weights[0].read_into(host.numpy())
        return host

    assert torch.equal(published(), published(use_cpc=True, cpc_forward_steps=3, cpc_time_subsample=4))
    assert torch.equal(published(), published(rnd=True))


@ALGOS
@pytest.mark.parametrize("coefficient", [0.1, 2.0])
def test_the_loss_grows_by_coefficient_times_the_auxiliary_loss(algo: AlgoConfig, coefficient: float) -> None:
    algo = dataclasses.replace(algo, aux_loss_coeff=coefficient)
    model, batch = model_of(**MEMORY), batch_of()
    task = AuxiliaryTask(auxiliary_of(model), seed=5, policy=0)
    task.begin(0)

    without, loss = loss_of(model, algo, batch), loss_of(model, algo, batch, auxiliary=task)

    auxiliary = loss.statistics["aux_loss"]
    assert 0.4 < auxiliary < 1.0  # ln 2, and what weights that were never trained are off it
    assert without.statistics["aux_loss"] == 0.0
    assert loss.total.item() == pytest.approx(without.total.item() + coefficient * auxiliary, rel=1e-5)
    # With sums it counts as often as there are valid steps, and is reported as a mean.
    task.begin(0)
    summed = dataclasses.replace(algo, loss_reduction="sum")
    total = loss_of(model, summed, batch, auxiliary=task)
    assert total.statistics["aux_loss"] == pytest.approx(auxiliary, rel=1e-5)
    expected = loss_of(model, summed, batch).total.item() + coefficient * auxiliary * int(batch.valid.sum())
    assert total.total.item() == pytest.approx(expected, rel=1e-5)


@ALGOS
def test_updates_move_the_weights_of_both_and_skipped_ones_of_neither(algo: AlgoConfig) -> None:
    trainer, batch = auxiliary_trainer(algo), batch_of()
    assert trainer.auxiliary is not None
    modules = trainer.auxiliary, trainer.model
    before = [copied(module) for module in modules]

    trainer.train(batch)

    assert (trainer.train_step, trainer.stats.skipped) == (1, 0)
    assert trainer.statistics()["aux_loss"] > 0.0
    for module, old in zip(modules, before, strict=True):
        assert changed(module, old) == set(old)
    before = [copied(module) for module in modules]
    batch.rewards[1, 0] = torch.nan
    trainer.train(batch)
    assert trainer.stats.skipped == 1
    assert [changed(module, old) for module, old in zip(modules, before, strict=True)] == [set(), set()]


def test_the_auxiliary_loss_alone_moves_encoder_and_memory() -> None:
    batch = batch_of()
    zeros = torch.zeros_like(batch.rewards)
    trainer = auxiliary_trainer(
        dataclasses.replace(CPC, policy_loss="pg", exploration_loss="none", value_loss_coeff=0.0)
    )
    with torch.no_grad():
        for parameter in trainer.model.value_head.parameters():
            parameter.zero_()  # values, targets and so advantages are 0
    before = copied(trainer.model)

    trainer.train(dataclasses.replace(batch, rewards=zeros, discounts=zeros))

    assert changed(trainer.model, before) == {n for n in before if n.startswith(("tower.encoder", "tower.core"))}


def test_each_dataset_policy_and_seed_has_draws_of_its_own() -> None:
    model, batch = model_of(**MEMORY), batch_of()
    module = auxiliary_of(model)

    def loss(seed: int = 5, policy: int = 0, train_step: int = 7, calls: int = 1) -> float:
        task = AuxiliaryTask(module, seed, policy)
        task.begin(train_step)
        unrolled = model.unroll(batch.obs, batch.rnn_states[:-1], batch.is_first, batch.recurrence)
        return [task.loss(batch, unrolled, CPC, None).item() for _ in range(calls)][-1]

    assert loss() == loss()
    assert len({loss(), loss(seed=6), loss(policy=1), loss(train_step=8), loss(calls=2)}) == 5


def test_weights_that_are_missing_or_of_another_network_are_refused() -> None:
    target, auxiliary = trainer_of(), auxiliary_trainer()
    payload: dict[str, Any] = copy.deepcopy(payload_of(target, Progress()))
    payload["target"]["model"].pop("value_head.linear.bias")
    without = payload_of(auxiliary_trainer(AlgoConfig()), Progress())
    assert "auxiliary" not in without

    for saved, trainer in ((payload, target), (without, auxiliary)):
        with pytest.raises(CheckpointError, match="here does not fit the model of this configuration"):
            restore(saved, "here", trainer, Progress())
