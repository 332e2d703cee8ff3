"""Small real parts of a run: layouts, specs, configs, models, batches as actors record them, and their loss."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfactory.action_heads import DiscreteHead
from sfactory.actor.local_actor import SlotActing
from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.layout import Layout
from sfactory.learner.auxiliary import AuxiliaryTask, make_auxiliary
from sfactory.learner.batch import Batch
from sfactory.learner.loss import LossFunction
from sfactory.learner.minibatches import Minibatch
from sfactory.learner.staging import Staging
from sfactory.learner.targets import TargetNetwork, Targets
from sfactory.learner.train_stats import NAMES, LossTerms, statistics_of, sums_of
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.ranks.ranks import ALONE, Ranks
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec, TensorSpec

TINY = ModelConfig(encoder_mlp_layers=(8,), normalize_input=False, normalize_returns=False)
VECTOR = EnvSpec(obs=(("obs", TensorSpec((3,), "float32")),), actions=(DiscreteHead("action", 2),))
# Observations of one number, as ScriptedEnv gives them.
SCALAR = EnvSpec(obs=(("obs", TensorSpec((1,), "float32")),), actions=(DiscreteHead("action", 10),))


def small_run(*, workers: int, envs: int, rollout: int, batch_size: int, **more: Any) -> dict[str, Any]:
    """Flags of a run with a small encoder, and with so many envs in one split of each actor."""
    sizes = {"num_workers": workers, "num_envs_per_worker": envs, "rollout": rollout, "batch_size": batch_size}
    return {"env": "any", "worker_num_splits": 1, "encoder_mlp_layers": (8,), **sizes, **more}


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
        dataset_rows=4,
        datasets=1,
    )
    return dataclasses.replace(layout, **changes)


def tiny_model(seed: int = 0) -> ActorCritic:
    """A model for VECTOR: its policy and values differ from state to state."""
    return model_of(seed=seed)


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
    ranks: Ranks = ALONE,
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
        auxiliary=make_auxiliary(model, algo, ModelConfig(encoder_mlp_layers=(8,))),
        ranks=ranks,
    )


def random_batch(model: ActorCritic, steps: int = 5, rows: int = 4, seed: int = 1, **changes: Any) -> Batch:
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
        policy_version=torch.zeros(steps, rows, dtype=torch.int64),
        is_first=torch.zeros(steps + 1, rows, dtype=torch.bool),
        rnn_states=torch.zeros(2, rows, 0),
    )
    return dataclasses.replace(batch, **changes)


def as_acted(model: ActorCritic, batch: Batch) -> Batch:
    """``batch``, of random_batch, with the log-probabilities and values that ``model`` gives now."""
    with torch.no_grad():
        actions = {"action": batch.actions["action"].flatten()}
        present = evaluate(model, {"obs": batch.obs["obs"][:-1].flatten(0, 1)}, actions)
    log_prob, value = (tensor.view_as(batch.valid) for tensor in (present.log_prob, present.value))
    return dataclasses.replace(batch, behavior_log_prob=log_prob, behavior_value=value)


def tiny_config(**fields: Any) -> ModelConfig:
    """TINY (8 features, nothing normalized; 6 recurrent units if wanted) with these fields."""
    return dataclasses.replace(TINY, **{"rnn_size": 6, **fields})


def model_of(spec: EnvSpec = VECTOR, seed: int = 0, dtype: torch.dtype = torch.float32, **fields: Any) -> ActorCritic:
    """A model of ``tiny_config(**fields)``; its policy differs from state to state. ``dtype``: of all it computes."""
    torch.manual_seed(seed)
    model = ActorCritic(spec, tiny_config(**fields), dtype)
    if dtype is torch.float64:
        model.double()
    with torch.no_grad():
        model.policy_head.linear.weight.mul_(100.0)
    return model


def moved_target(model: ActorCritic, config: AlgoConfig) -> TargetNetwork | None:
    """A target network with slightly other policy and values than ``model``, if ``config`` asks for one."""
    if not config.use_target_net:
        return None
    target, generator = TargetNetwork(model, interval=4, tau=1.0), torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in target.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return target


class Loss(NamedTuple):
    """total: 0-dim, with gradients. parts: their number. statistics: by name. returns: [T, R] - value targets."""

    total: Tensor
    parts: int
    statistics: dict[str, float]
    returns: Tensor


def loss_of(
    model: ActorCritic,
    config: AlgoConfig,
    batch: Batch,
    *,
    targets: Targets | None = None,
    microbatch_size: int = 0,
    target: TargetNetwork | None = None,
    auxiliary: AuxiliaryTask | None = None,
) -> Loss:
    """The loss of ``batch`` as a minibatch, with the coefficients of ``config``. targets: its own if none are given."""
    objective = LossFunction(model, config, target, auxiliary)
    targets = objective.gae_targets(batch) if targets is None else targets
    minibatch, exploration, kl = Minibatch(batch, targets), config.exploration_loss_coeff, config.kl_loss_coeff
    parts = list(objective.parts(minibatch, microbatch_size, exploration=exploration, kl=kl or None))
    cells = LossTerms.joined([part.cells for part in parts])
    auxiliary_sum = torch.stack([part.auxiliary for part in parts]).sum()
    statistics = statistics_of(sums_of(cells, objective.clip, auxiliary_sum))
    total = torch.stack([part.loss for part in parts]).sum()
    return Loss(total, len(parts), dict(zip(NAMES, statistics.tolist(), strict=True)), cells.target)


def loss_and_gradients(loss: Loss, model: ActorCritic) -> tuple[float, list[Tensor]]:
    """The total, and its gradient for each weight that has one."""
    model.zero_grad()
    torch.autograd.backward(loss.total)
    return loss.total.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


CPU = torch.device("cpu")
STEPS = 6
# (step, row) after which episodes end: inside, at the border of chunks, and by the last step of the rollout.
TERMINATED = ((1, 1), (2, 2), (5, 4))
TRUNCATED = ((0, 2), (2, 3), (3, 1), (4, 0), (5, 5))


def play(
    acting: SlotActing,
    slot: Slot,
    seed: int,
    terminated: Sequence[tuple[int, int]] = TERMINATED,
    truncated: Sequence[tuple[int, int]] = TRUNCATED,
) -> None:
    """Fill ``slot`` with a rollout on random observations and rewards. Row 0 begins an episode, others go on."""
    rng = np.random.default_rng(seed)
    steps, rows = slot.value.shape
    slot.obs["obs"][...] = rng.normal(size=slot.obs["obs"].shape)
    slot.reward[...] = rng.normal(size=slot.reward.shape)
    for field in (slot.terminated, slot.truncated, slot.is_first):
        field.fill(False)
    slot.valid.fill(True)
    slot.is_first[0, 0] = True
    for t, row in terminated:
        slot.terminated[t, row] = True
        slot.is_first[t + 1, row] = True
    for t, row in truncated:
        slot.truncated[t, row] = True
        if t + 1 < steps:  # NOTE [Truncation row]
            slot.valid[t + 1, row] = False
            slot.is_first[t + 2, row] = True
    torch.manual_seed(seed)
    state = torch.randn(rows, acting.policies[0].state_size)
    for t in range(steps):
        state = acting.act(slot, t, state)


def record(
    model: ActorCritic,
    config: ModelConfig,
    *,
    rows: int = STEPS,
    recurrence: int = STEPS,
    seed: int = 1,
    algo: AlgoConfig | None = None,
    terminated: Sequence[tuple[int, int]] = TERMINATED,
    truncated: Sequence[tuple[int, int]] = TRUNCATED,
) -> Batch:
    """A batch of rollouts of STEPS steps on VECTOR, played by ``model`` (of ``config``) as it is."""
    layout = small_layout(
        num_actors=1,
        slots_per_split=1,
        rows=rows,
        rollout=STEPS,
        recurrence=recurrence,
        state_size=model.state_size,
        dataset_rows=rows,
    )
    flat = FlatState(copy.deepcopy(model))
    weights = SharedWeights(flat.block.numel())
    weights.publish(flat.to_host(), 0)
    torch.manual_seed(seed)
    policy = ActingPolicy(VECTOR, config, weights, CPU)
    policy.refresh()
    slot = TrajectoryBuffer(VECTOR, layout).slot(0)
    play(SlotActing([policy], recurrence), slot, seed, terminated, truncated)
    staging = Staging(VECTOR, layout, pin=False)
    staging.take(slot, 0, rows)
    return Batch.of(staging, algo or AlgoConfig(), LearnerConfig(), 0, CPU)


def observations(obs: tuple[tuple[str, TensorSpec], ...], *rows: int, mean: float = 0.0) -> dict[str, Tensor]:
    """{path: [*rows, *shape]}: normal numbers of that mean and deviation 1, and integers from 0 to 99."""
    generator = torch.Generator().manual_seed(3)
    return {
        path: mean + torch.randn(*rows, *spec.shape, generator=generator)
        if spec.dtype == "float32"
        else torch.randint(0, 100, (*rows, *spec.shape), generator=generator).to(getattr(torch, spec.dtype))
        for path, spec in obs
    }
