"""Rollouts as actors record them, and the learner's batch of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch

from sfactory.actor.local_actor import SlotActing
from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.learner.batch import Batch
from sfactory.learner.staging import Staging
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from tests.support.parts import VECTOR, small_layout

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
    policy = ActingPolicy(VECTOR, config, weights, CPU)
    policy.refresh()
    slot = TrajectoryBuffer(VECTOR, layout).slot(0)
    play(SlotActing([policy], recurrence), slot, seed, terminated, truncated)
    staging = Staging(VECTOR, layout, pin=False)
    staging.take(slot, 0)
    return Batch.of(staging, algo or AlgoConfig(), LearnerConfig(), 0, CPU)
