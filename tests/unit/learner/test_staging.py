"""A staging area takes columns of slots, and a batch has their rewards, discounts and masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfactory.action_heads import BoxHead, DiscreteHead
from sfactory.config.schema import AlgoConfig, LearnerConfig
from sfactory.layout import Layout
from sfactory.learner.batch import Batch
from sfactory.learner.staging import CopyThreads, Staging
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import CPU, VECTOR, small_layout

SPEC = EnvSpec(
    obs=(("image", TensorSpec((2, 2), "uint8")), ("number", TensorSpec((), "int64"))),
    actions=(DiscreteHead("jump", 3), BoxHead("arm", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))),
)
SCALARS = ("log_prob", "value", "reward", "terminated", "valid", "policy_version")


def filled_slots(layout: Layout) -> list[Slot]:
    rng = np.random.default_rng(0)
    slots = TrajectoryBuffer(SPEC, layout).slots()
    for slot in slots:
        scalars = [getattr(slot, name) for name in (*SCALARS, "is_first", "rnn_states")]
        for array in (*slot.obs.values(), *slot.actions.values(), *scalars):
            array[...] = rng.integers(0, 200, array.shape) if array.dtype != bool else rng.random(array.shape) < 0.5
    return slots


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("state_size", [0, 3])
def test_slots_are_joined_and_the_last_one_is_cut(state_size: int, threads: int) -> None:
    layout = small_layout(rows=3, dataset_rows=5, state_size=state_size, recurrence=2, rollout=4)
    first, second, *_ = filled_slots(layout)
    staging = Staging(SPEC, layout, pin=False, copying=CopyThreads(threads))

    taken = [staging.take(first, 0, 3), staging.take(second, 0, 3)]

    assert taken == [3, 2]
    assert staging.full
    assert set(staging.scalars) == set(SCALARS)
    pairs = [(staging.obs[key], first.obs[key], second.obs[key]) for key in ("image", "number")]
    pairs += [(staging.actions[key], first.actions[key], second.actions[key]) for key in ("jump", "arm")]
    pairs += [(staging.scalars[name], getattr(first, name), getattr(second, name)) for name in SCALARS]
    if state_size:
        pairs += [(getattr(staging, n), getattr(first, n), getattr(second, n)) for n in ("is_first", "rnn_states")]
    for tensor, one, other in pairs:
        assert np.array_equal(tensor.numpy(), np.concatenate((one, other[:, :2]), axis=1))
        assert tensor.numpy().dtype == one.dtype
    valid_steps = first.valid.sum() + second.valid[:, :2].sum()
    assert staging.valid_steps == valid_steps > 0
    staging.clear()
    assert (staging.valid_steps, staging.filled) == (0, 0)


STEPS, ROWS = 4, 4


def staged() -> Staging:
    staging = Staging(VECTOR, small_layout(rollout=STEPS, dataset_rows=ROWS), pin=False, replay=True)
    torch.manual_seed(0)
    for tensor in (staging.obs["obs"], *(staging.scalars[name] for name in ("log_prob", "value", "reward"))):
        tensor.normal_()
    staging.scalars["valid"].fill_(True)
    return staging


def test_recorded_numbers_become_rewards_discounts_and_behavior() -> None:
    staging = staged()
    staging.scalars["terminated"][1, 2] = True
    staging.scalars["reward"][:, 0] = torch.tensor([1.0, -3.0, 30.0, -300.0])

    batch = Batch.of(staging, AlgoConfig(gamma=0.75, reward_scale=0.5, reward_clip=10.0), LearnerConfig(), 0, CPU)

    discounts = torch.full((STEPS, ROWS), 0.75)
    discounts[1, 2] = 0.0
    assert torch.equal(batch.discounts, discounts)
    assert batch.rewards[:, 0].tolist() == [0.5, -1.5, 10.0, -10.0]  # scaled first, then clipped
    assert batch.reward_clipped is not None
    assert batch.reward_clipped[:, 0].tolist() == [False, False, True, True]
    unclipped = Batch.of(staging, AlgoConfig(reward_scale=0.5), LearnerConfig(), 0, CPU)
    assert unclipped.rewards[:, 0].tolist() == [0.5, -1.5, 15.0, -150.0]
    assert torch.equal(batch.behavior_log_prob, staging.scalars["log_prob"])
    assert torch.equal(batch.behavior_value, staging.scalars["value"])
    assert torch.equal(batch.obs["obs"], staging.obs["obs"])
    assert torch.equal(batch.actions["action"], staging.actions["action"])


def test_steps_of_a_policy_that_is_too_old_are_masked_and_replayed_ones_have_an_own_limit() -> None:
    staging = staged()
    staging.scalars["policy_version"][:] = torch.tensor([10, 4, 4, 1])
    staging.scalars["replayed"][:, 2:] = True

    limits = LearnerConfig(max_policy_lag=5, max_replay_lag=8)

    batch, later = (Batch.of(staging, AlgoConfig(), limits, train_step, CPU) for train_step in (10, 12))

    assert batch.valid.tolist() == [[True, False, True, False]] * STEPS
    assert batch.fresh[0].tolist() == [True, False, False, False]
    assert later.valid[0].tolist() == [True, False, False, False]
