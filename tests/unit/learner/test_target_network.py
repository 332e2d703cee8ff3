"""A target network follows the policy by whole steps, changes its losses, and is saved and restored."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import CheckpointError
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.targets import TargetNetwork
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from tests.support.models import model_of
from tests.support.parts import random_batch, trainer_for

YES, NO = torch.tensor(True), torch.tensor(False)
IMPACT = AlgoConfig(use_target_net=True, target_update_interval=3)


def trainer_of(algo: AlgoConfig = IMPACT, seed: int = 0, **learner: Any) -> Trainer:
    model = model_of(seed=seed, normalize_input=True, normalize_returns=True)
    return trainer_for(model, algo, OptimConfig(learning_rate=0.01), LearnerConfig(**learner))


def state_of(model: ActorCritic) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def is_same(model: ActorCritic, state: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def disturbed(model: ActorCritic, by: float) -> None:
    """Change every weight and every buffer."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(by)


def target_of(trainer: Trainer) -> TargetNetwork:
    assert trainer.target is not None
    return trainer.target


def test_it_begins_as_a_copy_with_memory_of_its_own_that_nothing_trains() -> None:
    model = model_of(normalize_input=True)
    before = state_of(model)
    target = TargetNetwork(model, interval=1, tau=1.0)

    disturbed(model, 1.0)

    assert is_same(target.model, before)
    assert not any(parameter.requires_grad for parameter in target.model.parameters())


@pytest.mark.parametrize(("interval", "updates"), [(1, 5), (2, 5), (3, 7), (4, 12), (10, 9)])
def test_it_moves_once_every_interval_updates(interval: int, updates: int) -> None:
    model = model_of()
    target = TargetNetwork(model, interval, tau=1.0)
    moved = []

    for _ in range(updates):
        disturbed(model, 1.0)
        target.after_update(YES)
        moved.append(is_same(target.model, state_of(model)))

    assert moved == [number % interval == 0 for number in range(1, updates + 1)]
    assert int(target.moves) == updates // interval


def test_updates_that_were_skipped_do_not_count() -> None:
    model = model_of()
    target = TargetNetwork(model, interval=2, tau=1.0)
    before = state_of(model)
    disturbed(model, 1.0)

    for taken in (YES, NO, NO, NO):
        target.after_update(taken)
        assert is_same(target.model, before)
    target.after_update(YES)

    assert is_same(target.model, state_of(model))
    assert int(target.moves) == 1
    disturbed(model, 1.0)
    target.after_update(NO)
    assert not is_same(target.model, state_of(model))


@pytest.mark.parametrize("tau", [0.1, 0.25, 0.75, 1.0])
def test_weights_are_mixed_by_tau_and_buffers_are_taken_over_whole(tau: float) -> None:
    model = model_of(dtype=torch.float64, normalize_input=True, normalize_returns=True)
    target = TargetNetwork(model, interval=2, tau=tau)
    old = state_of(model)
    disturbed(model, 3.0)
    new = state_of(model)

    for _ in range(4):
        target.after_update(YES)

    parameters, buffers = dict(target.model.named_parameters()), dict(target.model.named_buffers())
    assert len(parameters) > 4
    assert len(buffers) == 10
    for name, parameter in parameters.items():
        once = (1.0 - tau) * old[name] + tau * new[name]
        torch.testing.assert_close(parameter.data, (1.0 - tau) * once + tau * new[name], rtol=1e-14, atol=1e-14)
    for name, buffer in buffers.items():
        assert torch.equal(buffer, new[name]), name


def test_updates_without_a_valid_step_and_skipped_ones_do_not_move_it() -> None:
    trainer = trainer_of(dataclasses.replace(IMPACT, target_update_interval=1))
    batch = random_batch(trainer.model)
    trainer.train(batch)
    moves = int(target_of(trainer).moves)
    nothing, bad = torch.zeros_like(batch.valid), torch.full_like(batch.rewards, torch.nan)

    trainer.train(dataclasses.replace(batch, taken=nothing))
    trainer.train(dataclasses.replace(batch, rewards=bad))

    assert trainer.stats.skipped == 1
    assert int(target_of(trainer).moves) == moves == 1


def test_it_sees_the_first_observations_as_the_policy_does() -> None:
    # The policy's statistics begin with the first dataset, before it is learned from.
    trainer = trainer_of()
    batch = random_batch(trainer.model)
    shifted = dataclasses.replace(batch, obs={"obs": 50.0 + 7.0 * batch.obs["obs"]})

    dataset = trainer.open(shifted)

    assert is_same(target_of(trainer).model, state_of(trainer.model))
    assert not dataset.passes


def test_new_target_network_of_a_resumed_run_is_a_copy() -> None:
    first, resumed = trainer_of(AlgoConfig()), trainer_of(seed=1)
    first.train(random_batch(first.model))

    restore(copy.deepcopy(payload_of(first, Progress())), "here", resumed, Progress())

    assert is_same(target_of(resumed).model, state_of(first.model))


def test_saved_target_network_is_ignored_if_it_is_off() -> None:
    first, resumed = trainer_of(), trainer_of(AlgoConfig(), seed=1)
    first.train(random_batch(first.model))

    restore(copy.deepcopy(payload_of(first, Progress())), "here", resumed, Progress())

    assert resumed.target is None
    assert is_same(resumed.model, state_of(first.model))


def test_a_target_network_of_another_model_is_refused() -> None:
    first, resumed = trainer_of(), trainer_of(seed=1)
    payload = copy.deepcopy(payload_of(first, Progress()))
    payload["target"]["model"].pop("value_head.linear.bias")

    with pytest.raises(CheckpointError, match="here does not fit the model"):
        restore(payload, "here", resumed, Progress())
