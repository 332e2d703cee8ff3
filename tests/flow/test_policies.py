"""Several policies, with real processes: each learner gets what its own policy did, all of it, and nothing else."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Literal

import numpy as np
import pytest
import torch

from sfactory.config.schema import Config, PopulationConfig
from sfactory.learner.staging import Staging
from sfactory.shared.opponents import POINTS
from sfactory.spec import EnvSpec
from tests.flow.test_counting import SPEC, counting_config
from tests.flow.test_counting_agents import SPEC as AGENTS_SPEC
from tests.flow.test_counting_agents import agents_config
from tests.support.long import long
from tests.support.sampling import TURNS, Array, Sampler, SerialSampler

POLICIES = 3
APART = 1000.0  # between the values that two policies give
ROLLOUT = 8


def population(mapping: str, inference: Literal["central", "local"], recurrence: int = 0) -> Config:
    config = counting_config(inference, ROLLOUT, "both", recurrence=recurrence)
    sampling = dataclasses.replace(config.sampling, num_envs_per_worker=12, worker_num_splits=2)
    policies = PopulationConfig(num_policies=POLICIES, policy_mapping=mapping, policy_mapping_episodes=2)
    return dataclasses.replace(config, sampling=sampling, population=policies)


class Learners:
    """One assembler for each policy, each with an area of its own, and what was learned from, column by column."""

    def __init__(self, sampler: SerialSampler, spec: EnvSpec = SPEC) -> None:
        layout = sampler.layout
        policies = range(layout.num_policies)
        self.assemblers = [sampler.batcher(policy) for policy in policies]
        self.areas = [Staging(spec, layout, pin=False, policy=policy) for policy in policies]
        self.datasets: list[list[dict[str, Array]]] = [[] for _ in range(layout.num_policies)]
        self._sampler = sampler

    def collect(self) -> None:
        """Let the workers take turns until every learner has six datasets."""
        for _ in range(TURNS):
            self._sampler.take_turns()
            for policy, (assembler, area) in enumerate(zip(self.assemblers, self.areas, strict=True)):
                if assembler.advance(area, 0):
                    columns = {name: tensor.numpy().copy() for name, tensor in area.scalars.items()}
                    columns["obs"] = area.obs["obs"].numpy().copy()
                    self.datasets[policy].append(columns)
                    area.clear()
            if all(len(datasets) >= 6 for datasets in self.datasets):
                break


def publish_all(sampler: Sampler | SerialSampler) -> None:
    """Policy p gives every observation the value p x APART."""
    for policy, weights in enumerate(sampler.shared.weights):
        with torch.no_grad():
            sampler.model.value_head.linear.weight.zero_()
            sampler.model.value_head.linear.bias.fill_(policy * APART)
        weights.publish(sampler.flat.to_host(), policy)


def check_datasets(learners: Learners) -> int:
    """Each learner got the steps of its own policy alone, and no step came twice; returns how many there were."""
    seen: Counter[bytes] = Counter()
    for policy, datasets in enumerate(learners.datasets):
        for columns in datasets:
            valid = columns["valid"]
            assert (columns["value"][valid] == policy * APART).all()
            assert (columns["policy_version"][valid] == policy).all()
            # An observation of the counting env holds env, episode and step, and comes but once.
            seen.update(step.tobytes() for step in columns["obs"][:-1][valid])
    assert max(seen.values()) == 1
    return seen.total()


@pytest.mark.parametrize(
    ("mapping", "inference", "recurrence"),
    [
        ("split", "central", 0),
        ("env", "local", 4),
        *(long("split", inference, 4) for inference in ("central", "local")),
        long("env", "central", 0),
    ],
)
def test_learner_gets_the_steps_of_its_own_policy_alone(
    mapping: str, inference: Literal["central", "local"], recurrence: int
) -> None:
    with SerialSampler(population(mapping, inference, recurrence), SPEC) as sampler:
        publish_all(sampler)
        learners = Learners(sampler)
        learners.collect()

        assert check_datasets(learners)
        assert all(columns["valid"].any() for datasets in learners.datasets for columns in datasets)
        # Steps of all policies add up to what was sampled.
        status, table = sampler.shared.status, sampler.shared.table
        received = status.values("received_steps", "sf-learner-")
        assert min(received) > 0
        assert status.total("env_steps", "sf-actor-") == sum(received) + table.steps_held()


@pytest.mark.parametrize(("inference", "recurrence"), [("central", 4), ("local", 0), long("local", 4)])
def test_agents_that_change_their_policy_reach_the_learner_of_the_policy_that_played_them(
    inference: Literal["central", "local"], recurrence: int
) -> None:
    config = agents_config(inference, "Lists", ROLLOUT)
    policies = PopulationConfig(num_policies=POLICIES, policy_mapping="agent", policy_mapping_episodes=1)
    model = population("agent", inference, recurrence).model
    learner = dataclasses.replace(config.learner, recurrence=recurrence or -1)
    config = dataclasses.replace(config, population=policies, model=model, learner=learner)
    with SerialSampler(config, AGENTS_SPEC) as sampler:
        publish_all(sampler)
        learners = Learners(sampler, AGENTS_SPEC)
        learners.collect()

        seen, table = check_datasets(learners), sampler.shared.table
        assert table.steps_of(0) + table.steps_of(1) >= seen
        for columns in (columns for datasets in learners.datasets for columns in datasets if recurrence):
            assert not (columns["held"] & columns["valid"]).any()


@pytest.mark.parametrize(
    ("inference", "recurrence"), [("central", 0), ("local", 4), long("central", 4), long("local", 0)]
)
def test_a_learner_gets_nothing_of_the_steps_of_opponents(
    inference: Literal["central", "local"], recurrence: int
) -> None:
    config = agents_config(inference, "Lists", ROLLOUT)
    model = population("agent", inference, recurrence).model
    learner = dataclasses.replace(config.learner, recurrence=recurrence or -1)
    against = PopulationConfig(opponent_pool=POLICIES, opponent_share=0.8)
    config = dataclasses.replace(config, population=against, model=model, learner=learner)
    with SerialSampler(config, AGENTS_SPEC) as sampler:
        pool = sampler.shared.opponents
        assert pool is not None
        for version in range(1, POLICIES + 2):
            with torch.no_grad():
                sampler.model.value_head.linear.weight.zero_()
                sampler.model.value_head.linear.bias.fill_(version * APART)
            pool.add(sampler.flat.to_host(), version, env_steps=version)
        publish_all(sampler)
        learners = Learners(sampler, AGENTS_SPEC)
        learners.collect()

        assert check_datasets(learners)
        results, newest = pool.results(), pool.newest()
        assert results[newest, :POINTS].any()
        assert not np.delete(results, newest, axis=0).any()
        acting = {policy for slot in sampler.shared.trajectories.slots() for policy in slot.policies()}
        assert {0} < acting <= {0, *(slot + 1 for slot in newest)}
        valid = [columns["valid"] for columns in learners.datasets[0]]
        assert 0.0 < float(np.mean(valid)) < 1.0
