"""Room: small real parts of a run, for tests of single rooms. In: numbers. Out: layouts, specs, batches, configs."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from sfactory.config.schema import ModelConfig
from sfactory.layout import Layout
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import DiscreteHead, EnvSpec, TensorSpec

TINY = ModelConfig(encoder_mlp_layers=(8,))
VECTOR = EnvSpec(obs=(("obs", TensorSpec((3,), "float32")),), actions=(DiscreteHead("action", 2),))
# Observations of one number, as ScriptedEnv gives them.
SCALAR = EnvSpec(obs=(("obs", TensorSpec((1,), "float32")),), actions=(DiscreteHead("action", 10),))


def small_layout(**changes: Any) -> Layout:
    """2 actors with one split of 3 rows each and 2 slots, rollout 4, datasets of 2 minibatches of 2 rows."""
    layout = Layout(
        inference="central",
        num_policies=1,
        num_actors=2,
        policy_workers=1,
        splits=1,
        rows=3,
        rollout=4,
        slots_per_actor=2,
        minibatch_rows=2,
        dataset_rows=4,
        datasets=1,
    )
    return dataclasses.replace(layout, **changes)


def tiny_model(seed: int = 0) -> ActorCritic:
    """A model for VECTOR whose policy and values differ from state to state."""
    torch.manual_seed(seed)
    model = ActorCritic(VECTOR, TINY)
    with torch.no_grad():
        model.policy_head.linear.weight.mul_(100.0)
    return model


def random_batch(model: ActorCritic, steps: int = 5, rows: int = 4, seed: int = 1, **changes: Tensor) -> Batch:
    """A valid batch for VECTOR that was recorded by a policy slightly off ``model``'s; ``changes`` replace fields."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(steps + 1, rows, 3, generator=generator)
    actions = torch.randint(0, 2, (steps, rows), generator=generator)
    with torch.no_grad():
        flat = model.evaluate({"obs": obs[:-1].flatten(0, 1)}, {"action": actions.flatten()})
    batch = Batch(
        obs={"obs": obs},
        actions={"action": actions},
        behavior_log_prob=flat.log_prob.view(steps, rows) + 0.2 * torch.randn(steps, rows, generator=generator),
        behavior_value=flat.value.view(steps, rows) + 0.2 * torch.randn(steps, rows, generator=generator),
        rewards=torch.randn(steps, rows, generator=generator),
        discounts=torch.full((steps, rows), 0.9),
        valid=torch.ones(steps, rows, dtype=torch.bool),
        lag=torch.zeros(steps, rows, dtype=torch.int32),
    )
    return dataclasses.replace(batch, **fields_of(changes))


def fields_of(changes: dict[str, Tensor]) -> dict[str, Any]:
    """The same dict, typed as ``dataclasses.replace`` wants it."""
    return dict(changes)
