"""What a training pass sees: scaled rewards, discounts that know of ends, and a mask that knows of age."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig
from sfactory.learner.batch import Batch
from sfactory.learner.staging import Staging
from tests.support.parts import VECTOR, small_layout

CPU = torch.device("cpu")
STEPS, ROWS = 4, 4


def staged() -> Staging:
    staging = Staging(VECTOR, small_layout(rollout=STEPS, dataset_rows=ROWS), pin=False)
    torch.manual_seed(0)
    staging.obs["obs"].normal_()
    staging.scalars["valid"].fill_(True)
    for name in ("log_prob", "value", "reward"):
        staging.scalars[name].normal_()
    return staging


def batch_of(staging: Staging, algo: AlgoConfig | None = None, train_step: int = 0, max_lag: int = 1000) -> Batch:
    return Batch.of(staging, algo or AlgoConfig(), LearnerConfig(max_policy_lag=max_lag), train_step, CPU)


def test_recorded_numbers_become_rewards_discounts_and_behavior() -> None:
    staging = staged()
    staging.scalars["terminated"][1, 2] = True
    staging.scalars["reward"][:, 0] = torch.tensor([1.0, -3.0, 30.0, -300.0])

    batch = batch_of(staging, AlgoConfig(gamma=0.75, reward_scale=0.5, reward_clip=10.0))

    discounts = torch.full((STEPS, ROWS), 0.75)
    discounts[1, 2] = 0.0
    assert torch.equal(batch.discounts, discounts)
    assert batch.rewards[:, 0].tolist() == [0.5, -1.5, 10.0, -10.0]  # scaled first, then clipped
    assert torch.equal(batch.behavior_log_prob, staging.scalars["log_prob"])
    assert torch.equal(batch.behavior_value, staging.scalars["value"])
    assert torch.equal(batch.obs["obs"], staging.obs["obs"])
    assert torch.equal(batch.actions["action"], staging.actions["action"])
    assert (tuple(batch.obs["obs"].shape), batch.rows) == ((STEPS + 1, ROWS, 3), ROWS)


@pytest.mark.parametrize(("max_lag", "valid"), [(1, [True, False, False, False]), (3, [True, True, True, False])])
def test_steps_of_a_policy_that_is_too_old_are_masked(max_lag: int, valid: list[bool]) -> None:
    staging = staged()
    staging.scalars["policy_version"][:] = torch.tensor([10, 9, 8, 7], dtype=torch.int32)

    batch = batch_of(staging, train_step=10, max_lag=max_lag)

    assert batch.lag[0].tolist() == [0, 1, 2, 3]
    assert batch.valid.tolist() == [valid] * STEPS


def test_columns_are_the_same_rows_of_every_field() -> None:
    staging = staged()
    staging.scalars["terminated"][1, 2] = True
    staging.scalars["valid"][2, 1] = False
    staging.scalars["policy_version"][:] = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    whole = batch_of(staging, train_step=3)

    part = whole.columns(slice(1, 3))

    assert (part.rows, int((~whole.valid).sum())) == (2, 1)
    for field in dataclasses.fields(Batch):
        ours, theirs = getattr(part, field.name), getattr(whole, field.name)
        if isinstance(theirs, dict):
            assert all(torch.equal(ours[key], theirs[key][:, 1:3]) for key in theirs), field.name
        elif theirs is not None:
            assert torch.equal(ours, theirs[:, 1:3]), field.name
    assert whole.columns(slice(0, ROWS)) is whole
