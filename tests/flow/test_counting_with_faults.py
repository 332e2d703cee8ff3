"""Envs that fail all the time: every good transition arrives once, in order and whole, and nothing else is valid.

With real processes and in one; envs raise in steps and resets, and return NaN, infinity and short observations.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from sfactory.config.schema import Config
from sfactory.shared.trajectories import ALL_ROWS, RowsOf, Slot
from sfactory_envs.synthetic.counting import CountingRules
from sfactory_envs.synthetic.faulty_counting import FAULTS
from tests.flow.test_counting import ACTORS, ENVS, SPEC, Inference, as_column, counting_config, publish
from tests.support.counting_check import check_column
from tests.support.long import long
from tests.support.sampling import Array, Sampler, SerialSampler, WitnessStaging

FAULTY = "sfactory_envs.synthetic.faulty_counting:FaultyCounting"
EVERY = 80


class PlaceStaging(WitnessStaging):
    """A WitnessStaging that knows of each row which slot and column of it the row came from."""

    def __init__(self, sampler: Sampler | SerialSampler) -> None:
        super().__init__(sampler)
        self.places: list[tuple[int, int]] = []

    def clear(self) -> None:
        super().clear()
        self.places = []

    def take(self, slot: Slot, start: int, most: int | None = None, columns: RowsOf = ALL_ROWS) -> int:
        count = super().take(slot, start, most, columns)
        self.places += [(slot.index, start + row) for row in range(count)]
        return count


def faulty_config(inference: Inference, rollout: int) -> Config:
    config = counting_config(inference, rollout, "mixed")
    run = dataclasses.replace(config.run, env=FAULTY, env_kwargs={**config.run.env_kwargs, "every": EVERY})
    sampling = dataclasses.replace(config.sampling, max_env_restarts=10_000, max_bad_env_data=1.0)
    return dataclasses.replace(config, run=run, sampling=sampling)


def sampled_columns(
    sampler: Sampler | SerialSampler, transitions: int, staging: PlaceStaging | None = None
) -> tuple[dict[tuple[int, int], list[dict[str, Array]]], int]:
    """{(first slot of a split, column): its rollouts in the order they came}, and how many valid steps were sampled."""
    publish(sampler, 0)
    staging = staging or PlaceStaging(sampler)
    table, layout = sampler.shared.table, sampler.layout
    splits = [table.slots_of_split(actor, split) for actor in range(ACTORS) for split in range(layout.splits)]
    split_of = {slot: split[0] for split in splits for slot in split}
    columns: dict[tuple[int, int], list[dict[str, Array]]] = {}
    delivered = 0
    while delivered < transitions:
        sampler.fill(staging)
        dataset = staging.snapshot()
        for row, (slot, column) in enumerate(staging.places):
            rollout = {name: array[:, row] for name, array in dataset.items()}
            columns.setdefault((split_of[slot], column), []).append(rollout)
        delivered += staging.valid_steps
        sampler.assembler.trained()
    sampler.wait_until_held_back()
    waiting = staging.untaken_valid_steps(sampler.shared.trajectories.slots())
    return columns, delivered + waiting


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
        check_column(as_column(rollouts, rollout), rules, every=EVERY, faults=FAULTS) for rollouts in columns.values()
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
