"""An auxiliary loss is trained along, its weights are not published, and they are restored."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, OptimConfig
from sfactory.errors import CheckpointError
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.loss import AuxiliaryTask, make_auxiliary
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.cpc import CpcAction
from sfactory.model.flat_state import flat_bytes
from tests.support.equality import changed, copied
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR, loss_of, model_of, record, tiny_config, trainer_for

CPC = AlgoConfig(use_cpc=True, cpc_forward_steps=3, cpc_time_subsample=4)
MEMORY: dict[str, Any] = {"use_rnn": True}
ALGOS = pytest.mark.parametrize("algo", [CPC, dataclasses.replace(CPC, with_vtrace=False)], ids=["vtrace", "gae"])


def auxiliary_of(model: ActorCritic) -> CpcAction:
    torch.manual_seed(3)
    made = make_auxiliary(model, CPC)
    assert made is not None
    return made


def trainer_of(algo: AlgoConfig = CPC) -> Trainer:
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
    trainer, batch = trainer_of(algo), batch_of()
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
    trainer = trainer_of(dataclasses.replace(CPC, policy_loss="pg", exploration_loss="none", value_loss_coeff=0.0))
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
        return [task.loss(batch, unrolled).item() for _ in range(calls)][-1]

    assert loss() == loss()
    assert len({loss(), loss(seed=6), loss(policy=1), loss(train_step=8), loss(calls=2)}) == 5


def test_a_checkpoint_without_auxiliary_weights_does_not_fit() -> None:
    payload = payload_of(trainer_of(AlgoConfig()), Progress())

    assert "auxiliary" not in payload
    with pytest.raises(CheckpointError, match="here does not fit the model of this configuration"):
        restore(payload, "here", trainer_of(), Progress())
