"""Small real parts of a run: layouts, specs, batches, configs."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.layout import Layout
from sfactory.learner.batch import Batch
from sfactory.learner.loss import make_auxiliary
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import DiscreteHead, EnvSpec, TensorSpec

TINY = ModelConfig(encoder_mlp_layers=(8,), normalize_input=False, normalize_returns=False)
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
        slots_per_split=2,
        slots_until_trained=False,
        recurrence=4,
        state_size=0,
        minibatch_rows=2,
        dataset_rows=4,
        datasets=1,
    )
    return dataclasses.replace(layout, **changes)


def tiny_model(seed: int = 0) -> ActorCritic:
    """A model for VECTOR: its policy and values differ from state to state."""
    torch.manual_seed(seed)
    model = ActorCritic(VECTOR, TINY)
    with torch.no_grad():
        model.policy_head.linear.weight.mul_(100.0)
    return model


class Evaluated(NamedTuple):
    """log_prob, entropy, value: [B] float32 - of recorded actions and observations, under present weights."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


def evaluate(model: ActorCritic, obs: dict[str, Tensor], actions: dict[str, Tensor]) -> Evaluated:
    """Judge actions taken for obs {path: [B, ...]} at the start of episodes; with gradients."""
    output = model(obs)
    distribution = model.distribution(output.dist_params)
    return Evaluated(distribution.log_prob(actions), distribution.entropy(), output.value)


def trainer_for(
    model: ActorCritic,
    algo: AlgoConfig | None = None,
    optim: OptimConfig | None = None,
    learner: LearnerConfig | None = None,
    *,
    seed: int = 0,
    policy: int = 0,
    total_env_steps: int = 2**62,
) -> Trainer:
    """A trainer of ``model`` and of the auxiliary loss of ``algo``, if any; None: default settings."""
    algo = algo or AlgoConfig()
    return Trainer(
        model,
        algo,
        optim or OptimConfig(),
        learner or LearnerConfig(),
        seed=seed,
        policy=policy,
        total_env_steps=total_env_steps,
        auxiliary=make_auxiliary(model, algo),
    )


def random_batch(model: ActorCritic, steps: int = 5, rows: int = 4, seed: int = 1, **changes: Tensor) -> Batch:
    """A valid batch for VECTOR that was recorded by a policy slightly off ``model``'s; ``changes`` replace fields."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(steps + 1, rows, 3, generator=generator)
    actions = torch.randint(0, 2, (steps, rows), generator=generator)
    with torch.no_grad():
        flat = evaluate(model, {"obs": obs[:-1].flatten(0, 1)}, {"action": actions.flatten()})
    batch = Batch(
        obs={"obs": obs},
        actions={"action": actions},
        behavior_log_prob=flat.log_prob.view(steps, rows) + 0.2 * torch.randn(steps, rows, generator=generator),
        behavior_value=flat.value.view(steps, rows) + 0.2 * torch.randn(steps, rows, generator=generator),
        rewards=torch.randn(steps, rows, generator=generator),
        discounts=torch.full((steps, rows), 0.9),
        taken=torch.ones(steps, rows, dtype=torch.bool),
        valid=torch.ones(steps, rows, dtype=torch.bool),
        replayed=torch.zeros(steps, rows, dtype=torch.bool),
        policy_version=torch.zeros(steps, rows, dtype=torch.int32),
        lag=torch.zeros(steps, rows, dtype=torch.int32),
        is_first=torch.zeros(steps + 1, rows, dtype=torch.bool),
        rnn_states=torch.zeros(2, rows, 0),
    )
    return dataclasses.replace(batch, **fields_of(changes))


def as_acted(model: ActorCritic, batch: Batch) -> Batch:
    """``batch``, of random_batch, with the log-probabilities and values that ``model`` gives now."""
    with torch.no_grad():
        actions = {"action": batch.actions["action"].flatten()}
        present = evaluate(model, {"obs": batch.obs["obs"][:-1].flatten(0, 1)}, actions)
    log_prob, value = (tensor.view_as(batch.valid) for tensor in (present.log_prob, present.value))
    return dataclasses.replace(batch, behavior_log_prob=log_prob, behavior_value=value)


def fields_of(changes: dict[str, Tensor]) -> dict[str, Any]:
    """The same dict, typed as ``dataclasses.replace`` wants it."""
    return dict(changes)
