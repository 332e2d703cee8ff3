"""Every env step that was taken is accounted for: trained, masked, or still in progress."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
import torch

from sfactory.config.schema import Config, LearnerConfig, ModelConfig, RunConfig, SamplingConfig
from sfactory.learner.learner import Learner
from sfactory.learner.setup import LearnerSetup
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting import FIELD_LIMIT, Counting
from tests.support.long import long
from tests.support.sampling import Sampler, WitnessStaging

ROLLOUT = 6
CONFIG = Config(
    run=RunConfig(
        env="sfactory_envs.synthetic.counting:Counting", env_kwargs={"max_length": 9}, train_for_env_steps=10**9
    ),
    sampling=SamplingConfig(num_workers=2, num_envs_per_worker=6, rollout=ROLLOUT, min_traj_buffers_per_worker=3),
    learner=LearnerConfig(
        batch_size=5 * ROLLOUT, num_batches_per_epoch=2, num_epochs=2, train_in_background_thread=False
    ),
    model=ModelConfig(encoder_mlp_layers=(16,), obs_scale=float(FIELD_LIMIT)),
)
UPDATES_PER_DATASET = 4


@pytest.mark.parametrize(
    ("inference", "max_policy_lag"),
    [("central", 5), ("local", 1000), *(long(inference, 1) for inference in ("central", "local"))],
)
def test_sampled_steps_are_trained_or_masked_or_in_progress(
    inference: Literal["central", "local"], max_policy_lag: int
) -> None:
    sampling = dataclasses.replace(CONFIG.sampling, inference=inference)
    learner = dataclasses.replace(CONFIG.learner, max_policy_lag=max_policy_lag)
    config = dataclasses.replace(CONFIG, sampling=sampling, learner=learner)
    env = Counting()
    torch.manual_seed(1)
    delivered = too_old = 0

    with Sampler(config, EnvSpec.of_spaces(env.observation_space, env.action_space)) as sampler:
        row = sampler.shared.status.row("sf-learner-0")
        learning = Learner(LearnerSetup(config, sampler.shared, 0, 1, "cpu", 1, None), row)
        learning.begin()
        staging = WitnessStaging(sampler)
        sampler.wait_until_held_back()  # what is learned from last of it is old, also if actors are slow from now on
        for _ in range(40):
            sampler.fill(staging)
            lag = int(row.get("updates")) - staging.scalars["policy_version"]
            delivered += staging.valid_steps
            too_old += int((staging.scalars["valid"] & (lag >= max_policy_lag)).sum())
            learning.learn(staging)
        sampler.wait_until_held_back()
        under_way = staging.untaken_env_steps(sampler.shared.trajectories.slots())
        sampled = sampler.shared.status.total("env_steps", "sf-actor")
        trained = row.get("env_steps")

    assert sampled == trained + too_old + under_way
    assert trained == learning.progress.env_steps == delivered - too_old
    assert under_way > 0
    assert (too_old > 0) == (max_policy_lag < 1000)
    assert 0 < row.get("updates") <= 40 * UPDATES_PER_DATASET
