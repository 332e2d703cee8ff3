"""At full speed, with real processes: every transition reaches the learner once, in order, untorn, with its action.

Faults of envs (they raise in steps and resets, and return NaN, infinity and short observations) mask their own steps.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Literal

import numpy as np
import pytest
import torch

from sfactory.config.schema import Config, LearnerConfig, ModelConfig, RunConfig, SamplingConfig
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting import FIELD_LIMIT, Counting, CountingRules, decode
from sfactory_envs.synthetic.faulty_counting import FAULTS
from tests.support.counting_check import Column, Resets, check_column, check_columns
from tests.support.long import long
from tests.support.parts import evaluate
from tests.support.sampling import Array, Sampler, Sampling, SerialSampler, WitnessStaging

Inference = Literal["central", "local"]
BOTH: tuple[Inference, Inference] = ("central", "local")
ACTORS, ENVS = 2, 10
COUNTING = "sfactory_envs.synthetic.counting:Counting"
COUNTING_VECTOR = "sfactory_envs.synthetic.counting_vector:counting_vector"
SPEC = EnvSpec.of_spaces(Counting().observation_space, Counting().action_space)
FAULTY = "sfactory_envs.synthetic.faulty_counting:FaultyCounting"
EVERY = 80
DATASET_ROWS = 7  # no multiple of the rows of a slot: slots are cut, and cut in all places


def counting_config(
    inference: Inference,
    rollout: int,
    ends: str,
    *,
    synchronous: bool = False,
    recurrence: int = 0,
    resets: Resets = "trainer",
) -> Config:
    """``recurrence``: steps between two recorded states of a GRU; 0 is a policy without memory."""
    rows = ACTORS * ENVS if synchronous else DATASET_ROWS
    env_kwargs: dict[str, object] = {"min_length": 1, "max_length": 2 * rollout + 1, "ends": ends}
    if resets != "trainer":
        env_kwargs["autoreset_mode"] = resets
    return Config(
        run=RunConfig(env=COUNTING if resets == "trainer" else COUNTING_VECTOR, env_kwargs=env_kwargs, device="cpu"),
        sampling=SamplingConfig(
            num_workers=ACTORS, num_envs_per_worker=ENVS, inference=inference, rollout=rollout, async_rl=not synchronous
        ),
        learner=LearnerConfig(batch_size=rows * rollout, train_in_background_thread=False, recurrence=recurrence or -1),
        model=ModelConfig(
            encoder_mlp_layers=(16,),
            obs_scale=float(FIELD_LIMIT),
            normalize_input=False,
            normalize_returns=False,
            use_rnn=recurrence > 0,
            rnn_size=8,
        ),
    )


def publish(sampler: Sampling, version: int) -> None:
    """Weights under which every value is the version; action probabilities stay different."""
    with torch.no_grad():
        sampler.model.value_head.linear.weight.zero_()
        sampler.model.value_head.linear.bias.fill_(version)
    sampler.shared.weights[0].publish(sampler.flat.to_host(), version)


def sample(sampler: Sampling, transitions: int) -> tuple[list[dict[str, Array]], WitnessStaging]:
    """Datasets of at least that many transitions. A new version is published after each of them."""
    with torch.no_grad():
        sampler.model.policy_head.linear.weight.mul_(100.0)
    publish(sampler, 0)
    sampler.wait_until_held_back()  # all actors have begun: one may be late by thousands of steps of another
    staging, datasets, delivered = WitnessStaging(sampler), [], 0
    while delivered < transitions:
        sampler.fill(staging)
        datasets.append(staging.snapshot())
        delivered += staging.valid_steps
        publish(sampler, len(datasets))
        sampler.assembler.trained()
    return datasets, staging


def check_versions(rollouts: list[dict[str, Array]], published: int, inference: str) -> None:
    """Versions are those of the acting weights, never go back, and stay in a rollout if the actor has the policy."""
    versions = np.stack([rollout["policy_version"] for rollout in rollouts])
    assert np.array_equal(versions, np.stack([rollout["value"] for rollout in rollouts]))
    assert (np.diff(versions.ravel()) >= 0).all()
    assert versions.min() >= 0
    assert versions.max() <= published
    if inference == "local":
        assert (versions == versions[:, :1]).all()


def check_log_probs(sampler: Sampling, datasets: list[dict[str, Array]]) -> None:
    """Recorded log-probabilities are those of the recorded action given the recorded observation."""
    obs = torch.from_numpy(np.concatenate([d["obs"][:-1] for d in datasets], axis=1)).flatten(0, 1)
    action = torch.from_numpy(np.concatenate([d["action"] for d in datasets], axis=1)).flatten()
    recorded = torch.from_numpy(np.concatenate([d["log_prob"] for d in datasets], axis=1)).flatten()
    with torch.no_grad():
        due = evaluate(sampler.model, {"obs": obs}, {"action": action}).log_prob
    assert due.std() > 0.01, "all actions are alike, so nothing is shown"
    torch.testing.assert_close(recorded, due, atol=1e-4, rtol=1e-4)


def check_places(columns: list[Column], rollout: int, ends: str) -> None:
    """Episodes ended on every place of a rollout, in each way that they can."""
    ways = {"mixed": ("terminated", "truncated"), "truncated": ("truncated",)}.get(ends, ("terminated",))
    for way in ways:
        places = {int(row) % rollout for column in columns for row in np.flatnonzero(getattr(column, way))}
        assert places == set(range(rollout)), way


def check_layout(config: Config, serial: bool, transitions: int, resets: Resets = "trainer") -> list[dict[str, Array]]:
    """Sample that many transitions and check them all; returns the datasets."""
    rollout, inference, ends = config.sampling.rollout, config.sampling.inference, config.run.env_kwargs["ends"]
    torch.manual_seed(rollout)
    sampler = (SerialSampler if serial else Sampler)(config, SPEC)
    rules = CountingRules(max_length=2 * rollout + 1, ends=ends)
    with sampler:
        datasets, staging = sample(sampler, transitions)
        sampler.wait_until_held_back()
        sampled = sampler.shared.status.total("env_steps", "sf-actor")
        waiting = staging.untaken_env_steps(sampler.shared.trajectories.slots())

    by_env: dict[int, list[dict[str, Array]]] = {}
    for dataset in datasets:
        for row in range(dataset["obs"].shape[1]):
            fields = {name: array[:, row] for name, array in dataset.items()}
            by_env.setdefault(decode(fields["obs"][0]).identity, []).append(fields)
    columns = [Column.of_slots(rollouts, rollout) for rollouts in by_env.values()]
    counts = check_columns(columns, rules, resets)
    delivered = sum(each.rows["valid"] for each in counts)
    assert len(counts) == ACTORS * ENVS
    assert delivered >= transitions
    assert sampled == delivered + waiting
    check_places(columns, rollout, rules.ends)
    if sampler.layout.state_size:
        for rollouts in by_env.values():
            check_memory(sampler, rollouts)
    else:
        check_log_probs(sampler, datasets)
    for rollouts in by_env.values():
        check_versions(rollouts, len(datasets), inference)
    assert max(rollouts[-1]["policy_version"].max() for rollouts in by_env.values()) > 0
    return datasets


def check_memory(sampler: Sampling, rollouts: list[dict[str, Array]]) -> None:
    """Recorded states and log-probabilities are those of the model run over the env's whole life, with its resets."""
    steps, recurrence = sampler.layout.rollout, sampler.layout.recurrence
    state = torch.zeros(1, sampler.layout.state_size)
    for rollout in rollouts:
        obs, is_first, recorded = torch.from_numpy(rollout["obs"]), rollout["is_first"], rollout["rnn_states"]
        for t in range(steps):
            state = torch.zeros_like(state) if is_first[t] else state
            if t % recurrence == 0:
                torch.testing.assert_close(torch.from_numpy(recorded[t // recurrence]), state[0], atol=1e-5, rtol=1e-4)
            if not obs[t].any():  # an agent that is idle
                continue
            with torch.no_grad():
                output = sampler.model({"obs": obs[t : t + 1]}, state)
                action = {"action": torch.from_numpy(rollout["action"][t : t + 1])}
                log_prob = sampler.model.distribution(output.dist_params).log_prob(action)
            assert abs(float(log_prob) - float(rollout["log_prob"][t])) < 1e-3
            state = output.state
        torch.testing.assert_close(torch.from_numpy(recorded[-1]), state[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("inference", "serial", "rollout", "ends", "transitions"),
    [
        ("central", False, 5, "mixed", 4_000),
        ("local", False, 1, "mixed", 2_000),
        long("local", False, 3, "truncated", 3_000),
        *(long(inference, False, rollout, "mixed", 30_000) for inference in BOTH for rollout in (5, 8)),
        *(long(inference, False, 4, "both", 3_000) for inference in BOTH),
        ("central", True, 1, "mixed", 2_500),
        ("central", True, 4, "both", 2_500),
    ],
)
def test_every_transition_arrives_once_in_order_and_whole(
    inference: Inference, serial: bool, rollout: int, ends: Any, transitions: int
) -> None:
    check_layout(counting_config(inference, rollout, ends), serial, transitions)


@pytest.mark.parametrize(
    ("inference", "serial"), [("central", False), ("local", True), long("local", False), long("central", True)]
)
def test_every_dataset_of_a_synchronous_layout_is_of_the_newest_policy(inference: Inference, serial: bool) -> None:
    datasets = check_layout(counting_config(inference, 5, "mixed", synchronous=True), serial, 3_000)

    for version, dataset in enumerate(datasets):
        assert (dataset["policy_version"] == version).all(), f"dataset {version}"


@pytest.mark.parametrize(
    ("inference", "serial", "rollout", "recurrence"),
    [
        ("central", False, 6, 2),
        ("local", True, 3, 1),
        long("central", True, 6, 6),
        *(long(inference, False, rollout, rollout) for inference in BOTH for rollout in (1, 6)),
        long("local", False, 6, 2),
    ],
)
def test_recorded_states_of_memory_are_those_of_the_whole_life_of_an_env(
    inference: Inference, serial: bool, rollout: int, recurrence: int
) -> None:
    check_layout(counting_config(inference, rollout, "mixed", recurrence=recurrence), serial, 2_000)


@pytest.mark.parametrize(
    ("inference", "resets", "rollout", "ends", "recurrence"),
    [
        ("central", "NextStep", 5, "mixed", 0),
        ("local", "SameStep", 6, "mixed", 2),
        long("local", "NextStep", 1, "mixed", 0),
        long("central", "SameStep", 3, "truncated", 0),
        long("local", "SameStep", 1, "mixed", 0),
        long("central", "NextStep", 6, "mixed", 2),
    ],
)
def test_vector_env_is_recorded_as_plain_envs_are(
    inference: Inference, resets: Resets, rollout: int, ends: Any, recurrence: int
) -> None:
    config = counting_config(inference, rollout, ends, recurrence=recurrence, resets=resets)

    check_layout(config, False, 2_000, resets)


def faulty_config(inference: Inference, rollout: int) -> Config:
    config = counting_config(inference, rollout, "mixed")
    run = dataclasses.replace(config.run, env=FAULTY, env_kwargs={**config.run.env_kwargs, "every": EVERY})
    sampling = dataclasses.replace(config.sampling, max_env_restarts=10_000, max_bad_env_data=1.0)
    return dataclasses.replace(config, run=run, sampling=sampling)


def sampled_columns(sampler: Sampling, transitions: int) -> tuple[dict[tuple[int, int], list[dict[str, Array]]], int]:
    """{(first slot of a split, column): its rollouts in the order they came}, and how many env steps were sampled."""
    publish(sampler, 0)
    sampler.wait_until_held_back()  # as in ``sample``
    staging = WitnessStaging(sampler)
    table, layout = sampler.shared.table, sampler.layout
    splits = [table.slots_of_split(actor, split) for actor in range(ACTORS) for split in range(layout.splits)]
    split_of = {slot: split[0] for split in splits for slot in split}
    columns: dict[tuple[int, int], list[dict[str, Array]]] = {}
    delivered = env_steps = 0
    while delivered < transitions:
        sampler.fill(staging)
        dataset = staging.snapshot()
        env_steps += int(dataset["counts"].sum())
        for row, (slot, column) in enumerate(staging.places):
            rollout = {name: array[:, row] for name, array in dataset.items()}
            columns.setdefault((split_of[slot], column), []).append(rollout)
        delivered += staging.valid_steps
        sampler.assembler.trained()
    sampler.wait_until_held_back()
    return columns, env_steps + staging.untaken_env_steps(sampler.shared.trajectories.slots())


@pytest.mark.parametrize(
    ("inference", "rollout", "serial"),
    [("central", 5, False), ("local", 1, True), long("local", 5, False), long("central", 5, True)],
)
def test_faults_mask_their_own_steps_alone(inference: Inference, rollout: int, serial: bool) -> None:
    config = faulty_config(inference, rollout)
    sampler = SerialSampler(config, SPEC) if serial else Sampler(config, SPEC)
    with sampler:
        columns, arrived = sampled_columns(sampler, 2_500)
        status = sampler.shared.status
        counted = {name: int(status.total(name, "sf-actor")) for name in ("env_steps", "env_restarts", "bad_env_data")}

    rules = CountingRules(max_length=2 * rollout + 1, ends="mixed")
    counts = [
        check_column(Column.of_slots(rollouts, rollout), rules, every=EVERY, faults=FAULTS)
        for rollouts in columns.values()
    ]
    assert len(counts) == ACTORS * ENVS
    assert counted["env_steps"] == arrived
    rows = sum((each.rows for each in counts), Counter[str]())
    assert all(rows[fault] > 0 for fault in FAULTS), rows
    identities = [identity for each in counts for identity in each.identities]
    assert len(set(identities)) == len(identities), "an env stood in two places"
    fresh = len(identities) - len(counts)
    # What was sampled and did not arrive had faults, too.
    assert rows["raise"] <= fresh <= counted["env_restarts"] < 3 * fresh
    bad = rows["nan reward"] + rows["inf obs"] + rows["short obs"]
    assert bad <= counted["bad_env_data"] < 3 * bad
