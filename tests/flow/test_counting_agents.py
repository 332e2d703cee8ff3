"""Agents that die, sleep and wake up: every row of every one of them reaches the learner as the script of its env says.

With real processes and in one, of envs in PettingZoo's form and in lists.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Literal

import numpy as np
import pytest
import torch

from sfactory.config.schema import Config
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting_agents import AgentsRules, CountingLists
from tests.flow.test_counting import (
    ACTORS,
    BOTH,
    DATASET_ROWS,
    ENVS,
    Inference,
    check_memory,
    counting_config,
    sampled_columns,
)
from tests.support.agents_check import AgentCounts, check_rows
from tests.support.counting_check import NAMES, Column
from tests.support.long import long
from tests.support.sampling import Array, Sampler, SerialSampler

Form = Literal["Parallel", "Lists"]
MODULE = "sfactory_envs.synthetic.counting_agents"
AGENTS = 3
SPEC = EnvSpec.of_spaces(
    CountingLists().observation_space, CountingLists().action_space, tuple(f"agent_{agent}" for agent in range(AGENTS))
)
PARALLEL_SPEC = dataclasses.replace(SPEC, agents=tuple(f"counter_{agent}" for agent in range(AGENTS)))


def agents_config(
    inference: Inference, form: Form, rollout: int, *, synchronous: bool = False, recurrence: int = 0
) -> Config:
    """``recurrence``: as for ``counting_config``."""
    config = counting_config(inference, rollout, "mixed", recurrence=recurrence)
    kwargs: dict[str, object] = {"agents": AGENTS, "max_length": 2 * rollout + 1}
    rows = ACTORS * ENVS * AGENTS if synchronous else DATASET_ROWS
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, env=f"{MODULE}:Counting{form}", env_kwargs=kwargs),
        sampling=dataclasses.replace(config.sampling, async_rl=not synchronous),
        learner=dataclasses.replace(config.learner, batch_size=rows * rollout),
    )


def rows_of(columns: list[list[dict[str, Array]]], rollout: int) -> Column:
    """The rows of one env with agents of these columns; no more slots than there are of all."""
    names = (*NAMES, "counts")
    slots = [
        {name: np.stack([slot[name] for slot in of_agents], axis=1) for name in names}
        for of_agents in zip(*columns, strict=False)
    ]
    return Column.of_slots(slots, rollout)


def check_layout(
    sampler: Sampler | SerialSampler, form: Form, transitions: int
) -> dict[tuple[int, int], list[dict[str, Array]]]:
    """Sample so many transitions and check every row; returns the columns by first slot of their split and place."""
    rollout = sampler.layout.rollout
    rules = AgentsRules(AGENTS, max_length=2 * rollout + 1, all_may_sleep=form == "Lists")
    with sampler:
        columns, arrived = sampled_columns(sampler, transitions)
        sampled = sampler.shared.status.total("env_steps", "sf-actor")
    counted: list[AgentCounts] = []
    for (split, place), _ in sorted(columns.items()):
        if place % AGENTS == 0:
            of_env = [columns[split, place + agent] for agent in range(AGENTS)]
            counted.append(check_rows(rows_of(of_env, rollout), rules))
    assert len(counted) == ACTORS * ENVS
    assert len({each.identity for each in counted}) == ACTORS * ENVS
    assert sampled == arrived
    kinds = sum((each.kinds for each in counted), Counter[str]())
    assert all(kinds[kind] for kind in ("ordinary", "idle", "terminated", "truncated", "asleep", "lost")), kinds
    return columns


@pytest.mark.parametrize(
    ("inference", "form", "rollout", "serial"),
    [
        ("central", "Lists", 5, False),
        ("local", "Parallel", 5, True),
        ("central", "Parallel", 1, True),
        *(long(inference, form, 5, False) for inference, form in (("local", "Lists"), ("central", "Parallel"))),
        *(long(inference, "Lists", rollout, True) for inference in BOTH for rollout in (1, 5, 8)),
    ],
)
def test_every_row_of_every_agent_arrives_as_the_script_says(
    inference: Inference, form: Form, rollout: int, serial: bool
) -> None:
    config = agents_config(inference, form, rollout)
    spec = SPEC if form == "Lists" else PARALLEL_SPEC

    check_layout((SerialSampler if serial else Sampler)(config, spec), form, 1_000 if serial else 2_000)


@pytest.mark.parametrize("inference", ["central", long("local")])
def test_synchronous_dataset_is_one_round_of_all_agents(inference: Inference) -> None:
    config = agents_config(inference, "Lists", 5, synchronous=True)

    columns = check_layout(SerialSampler(config, SPEC), "Lists", 1_000)

    assert len({len(column) for column in columns.values()}) == 1


@pytest.mark.parametrize(
    ("inference", "rollout", "recurrence"), [("local", 6, 2), long("central", 6, 2), long("central", 3, 1)]
)
def test_agent_that_wakes_up_remembers_all_that_it_has_seen(
    inference: Inference, rollout: int, recurrence: int
) -> None:
    torch.manual_seed(rollout)
    sampler = SerialSampler(agents_config(inference, "Lists", rollout, recurrence=recurrence), SPEC)

    for rollouts in check_layout(sampler, "Lists", 1_000).values():
        check_memory(sampler, rollouts)
