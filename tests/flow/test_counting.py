"""At full speed, with real processes: every transition reaches the learner once, in order, untorn, with its action."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch

from sfactory.config.schema import Config, LearnerConfig, ModelConfig, RunConfig, SamplingConfig
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting import FIELD_LIMIT, Counting, CountingRules, decode
from tests.support.counting_check import Column, Tally, check_columns
from tests.support.sampling import Array, Sampler, WitnessStaging, columns_by_env

ACTORS, ENVS = 2, 10
DATASET_ROWS = 7  # no multiple of the rows of a slot: slots are cut, and cut in all places


def counting_config(inference: Literal["central", "local"], rollout: int, ends: str) -> Config:
    env_kwargs = {"min_length": 1, "max_length": 2 * rollout + 1, "ends": ends}
    return Config(
        run=RunConfig(env="sfactory_envs.synthetic.counting:Counting", env_kwargs=env_kwargs, device="cpu"),
        sampling=SamplingConfig(num_workers=ACTORS, num_envs_per_worker=ENVS, inference=inference, rollout=rollout),
        learner=LearnerConfig(batch_size=DATASET_ROWS * rollout, train_in_background_thread=False),
        model=ModelConfig(encoder_mlp_layers=(16,), obs_scale=float(FIELD_LIMIT)),
    )


def publish(sampler: Sampler, version: int) -> None:
    """Weights under which every value is the version, and action probabilities are as different as ever."""
    with torch.no_grad():
        sampler.model.value_head.weight.zero_()
        sampler.model.value_head.bias.fill_(version)
    sampler.wiring.weights[0].publish(sampler.flat.to_host(), version)


def sample(sampler: Sampler, transitions: int) -> tuple[list[dict[str, Array]], WitnessStaging]:
    """Datasets of at least that many transitions. A new version is published after every one of them."""
    with torch.no_grad():
        sampler.model.policy_head.linear.weight.mul_(100.0)
    publish(sampler, 0)
    staging, datasets, delivered = WitnessStaging(sampler), [], 0
    while delivered < transitions:
        sampler.fill(staging)
        datasets.append(staging.snapshot())
        delivered += staging.valid_steps
        publish(sampler, len(datasets))
    return datasets, staging


def as_column(rollouts: list[dict[str, Array]], steps: int) -> Column:
    joined: dict[str, Any] = {
        name: np.concatenate([rollout[name][:steps] for rollout in rollouts])
        for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "is_first")
    }
    return Column(
        **joined,
        rollout=steps,
        slot_end_obs=np.stack([rollout["obs"][steps] for rollout in rollouts]),
        slot_end_is_first=np.array([rollout["is_first"][steps] for rollout in rollouts]),
    )


def check_versions(rollouts: list[dict[str, Array]], published: int, inference: str) -> None:
    """Versions are those whose weights acted, never go back, and within a rollout stay if the actor has the policy."""
    versions = np.stack([rollout["policy_version"] for rollout in rollouts])
    assert np.array_equal(versions, np.stack([rollout["value"] for rollout in rollouts]))
    assert (np.diff(versions.ravel()) >= 0).all()
    assert versions.min() >= 0
    assert versions.max() <= published
    if inference == "local":
        assert (versions == versions[:, :1]).all()


def check_log_probs(sampler: Sampler, datasets: list[dict[str, Array]]) -> None:
    """Recorded log-probabilities are those of the recorded action given the recorded observation."""
    obs = torch.from_numpy(np.concatenate([d["obs"][:-1] for d in datasets], axis=1)).flatten(0, 1)
    action = torch.from_numpy(np.concatenate([d["action"] for d in datasets], axis=1)).flatten()
    recorded = torch.from_numpy(np.concatenate([d["log_prob"] for d in datasets], axis=1)).flatten()
    with torch.no_grad():
        due = sampler.model.evaluate({"obs": obs}, {"action": action}).log_prob
    assert due.std() > 0.01, "all actions are alike, so nothing is shown"
    torch.testing.assert_close(recorded, due, atol=1e-4, rtol=1e-4)


def check_places(columns: list[Column], rollout: int, ends: str) -> None:
    """Episodes ended on every place of a rollout, in each way that they can."""
    ways = {"mixed": ("terminated", "truncated"), "truncated": ("truncated",)}.get(ends, ("terminated",))
    for way in ways:
        places = {int(row) % rollout for column in columns for row in np.flatnonzero(getattr(column, way))}
        assert places == set(range(rollout)), way


@pytest.mark.parametrize("inference", ["central", "local"])
@pytest.mark.parametrize(
    ("rollout", "ends", "transitions"),
    [(5, "mixed", 30_000), (8, "mixed", 30_000), (1, "mixed", 3_000), (3, "truncated", 3_000), (4, "both", 3_000)],
)
def test_every_transition_arrives_once_in_order_and_whole(
    inference: Literal["central", "local"], rollout: int, ends: Any, transitions: int
) -> None:
    torch.manual_seed(rollout)
    rules = CountingRules(max_length=2 * rollout + 1, ends=ends)
    env = Counting()
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space)

    with Sampler(counting_config(inference, rollout, ends), spec) as sampler:
        datasets, staging = sample(sampler, transitions)
        sampler.wait_until_held_back()
        sampled = sampler.wiring.status.total("env_steps", "sf-actor")
        waiting = staging.untaken_valid_steps(sampler.wiring.trajectories.slots())

    by_env = columns_by_env(datasets, lambda obs: decode(obs).identity)
    columns = [as_column(rollouts, rollout) for rollouts in by_env.values()]
    tallies: list[Tally] = check_columns(columns, rules)
    delivered = sum(tally.transitions for tally in tallies)
    assert len(tallies) == ACTORS * ENVS
    assert delivered >= transitions
    assert sampled == delivered + waiting
    check_places(columns, rollout, ends)
    check_log_probs(sampler, datasets)
    for rollouts in by_env.values():
        check_versions(rollouts, len(datasets), inference)
    assert max(rollouts[-1]["policy_version"].max() for rollouts in by_env.values()) > 0
