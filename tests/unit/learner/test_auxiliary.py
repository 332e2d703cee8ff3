"""An auxiliary loss is trained along, its weights are not published, and they are restored."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import CheckpointError, DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.loss import AuxiliaryTask, make_auxiliary
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.cpc import CpcAction
from sfactory.model.flat_state import flat_bytes
from tests.support.lone_learner import LoneLearner
from tests.support.losses import loss_of
from tests.support.models import model_of, tiny_config
from tests.support.parts import VECTOR
from tests.support.recorded import record

CPC = AlgoConfig(use_cpc=True, cpc_forward_steps=3, cpc_time_subsample=4)
GAE = dataclasses.replace(CPC, with_vtrace=False)
MEMORY: dict[str, Any] = {"use_rnn": True}
ALGOS = pytest.mark.parametrize("algo", [CPC, GAE], ids=["vtrace", "gae"])


def auxiliary_of(model: ActorCritic, algo: AlgoConfig = CPC, seed: int = 3) -> CpcAction:
    torch.manual_seed(seed)
    made = make_auxiliary(model, algo)
    assert isinstance(made, CpcAction)
    return made


def trainer_of(algo: AlgoConfig = CPC, seed: int = 0, **learner: Any) -> Trainer:
    model = model_of(seed=seed, **MEMORY)
    return Trainer(
        model,
        algo,
        OptimConfig(learning_rate=0.01),
        LearnerConfig(**learner),
        seed=5,
        policy=0,
        total_env_steps=2**62,
        auxiliary=auxiliary_of(model, algo, seed) if algo.use_cpc else None,
    )


def batch_of(seed: int = 1) -> Batch:
    return record(model_of(**MEMORY), tiny_config(**MEMORY), seed=seed)


def weights(module: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def test_first_weights_of_the_network_are_the_same_with_and_without() -> None:
    plain, beside = Wired(), Wired(use_cpc=True, cpc_forward_steps=3, cpc_time_subsample=4)

    assert torch.equal(plain.published(), beside.published())


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
def test_updates_move_the_weights_of_both(algo: AlgoConfig) -> None:
    trainer = trainer_of(algo)
    assert trainer.auxiliary is not None
    before = weights(trainer.auxiliary), weights(trainer.model)

    trainer.train(batch_of())

    assert (trainer.train_step, trainer.stats.skipped) == (1, 0)
    assert trainer.statistics()["aux_loss"] > 0.0
    for module, old in zip((trainer.auxiliary, trainer.model), before, strict=True):
        assert all(not torch.equal(a, b) for a, b in zip(weights(module), old, strict=True))


def test_the_auxiliary_loss_alone_moves_encoder_and_memory() -> None:
    silent = dataclasses.replace(CPC, policy_loss="pg", exploration_loss="none", value_loss_coeff=0.0)
    batch = batch_of()
    batch = dataclasses.replace(
        batch, rewards=torch.zeros_like(batch.rewards), discounts=torch.zeros_like(batch.rewards)
    )
    trainer = trainer_of(silent)
    with torch.no_grad():
        for parameter in trainer.model.value_head.parameters():
            parameter.zero_()  # values, targets and so advantages are 0
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}

    trainer.train(batch)

    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if name.startswith(("tower.encoder", "tower.core"))}


def test_an_update_that_is_skipped_leaves_the_auxiliary_weights_as_they_are() -> None:
    trainer, batch = trainer_of(), batch_of()
    rewards = batch.rewards.clone()
    rewards[1, 0] = float("nan")
    assert trainer.auxiliary is not None
    before = weights(trainer.auxiliary)

    trainer.train(dataclasses.replace(batch, rewards=rewards))

    assert trainer.stats.skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer.auxiliary), before, strict=True))


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


def test_a_resumed_trainer_does_the_same_updates_as_one_that_never_stopped() -> None:
    first, resumed, batch = trainer_of(), trainer_of(seed=8), batch_of()
    for _ in range(3):
        first.train(batch)
    payload = copy.deepcopy(payload_of(first, Progress(env_steps=90)))

    restore(payload, "here", resumed, Progress())
    for trainer in (first, resumed):
        trainer.train(batch)

    for mine, other in ((first.model, resumed.model), (first.auxiliary, resumed.auxiliary)):
        assert mine is not None
        assert other is not None
        assert all(torch.equal(a, b) for a, b in zip(weights(mine), weights(other), strict=True))


def test_a_checkpoint_without_auxiliary_weights_does_not_fit() -> None:
    plain, beside = trainer_of(AlgoConfig()), trainer_of()
    plain.train(batch_of())
    payload = payload_of(plain, Progress())

    assert "auxiliary" not in payload
    with pytest.raises(CheckpointError, match="here does not fit the model of this configuration"):
        restore(payload, "here", beside, Progress())


class Wired(LoneLearner):
    """A learner with memory, and what it publishes."""

    def __init__(self, **flags: Any) -> None:
        super().__init__(use_rnn=True, rnn_size=6, **flags)

    def published(self) -> Tensor:
        """The bytes that everybody reads."""
        host = torch.zeros(flat_bytes(ActorCritic(VECTOR, self.config.model)), dtype=torch.uint8)
        self.shared.weights[0].read_into(host.numpy())
        return host


def test_auxiliary_weights_that_are_not_finite_end_the_run_before_they_are_saved() -> None:
    wired = Wired(use_cpc=True, cpc_forward_steps=3, cpc_time_subsample=4)
    auxiliary = wired.learning.trainer.auxiliary
    assert auxiliary is not None
    with torch.no_grad():
        next(auxiliary.parameters()).view(-1)[0] = float("inf")

    with pytest.raises(DivergedError, match="not published or saved"):
        wired.learning.publisher.publish(0)
