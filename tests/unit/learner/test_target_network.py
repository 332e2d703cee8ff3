"""A target network follows the policy by whole steps, changes its losses, and is saved and restored."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from sfactory.config.schema import AlgoConfig, OptimConfig
from sfactory.errors import CheckpointError
from sfactory.learner.checkpointing import Progress, payload_of, restore
from sfactory.learner.targets import TargetNetwork
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from tests.support.equality import changed, copied
from tests.support.parts import model_of, random_batch, trainer_for

YES, NO = torch.tensor(True), torch.tensor(False)
IMPACT = AlgoConfig(use_target_net=True, target_update_interval=3)


def trainer_of(algo: AlgoConfig = IMPACT, seed: int = 0) -> Trainer:
    model = model_of(seed=seed, normalize_input=True, normalize_returns=True)
    return trainer_for(model, algo, OptimConfig(learning_rate=0.01))


def is_copy(target: TargetNetwork | None, model: ActorCritic) -> bool:
    assert target is not None
    return not changed(target.model, dict(model.state_dict()))


def disturbed(model: ActorCritic, by: float) -> None:
    """Change every weight and every buffer."""
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
    trainer.train(batch)

    trainer.train(dataclasses.replace(batch, taken=torch.zeros_like(batch.valid)))
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


def test_a_target_network_of_another_model_is_refused() -> None:
    payload: dict[str, Any] = copy.deepcopy(payload_of(trainer_of(), Progress()))
    payload["target"]["model"].pop("value_head.linear.bias")

    with pytest.raises(CheckpointError, match="here does not fit the model"):
        restore(payload, "here", trainer_of(seed=1), Progress())
