"""Where collection waits for the learner, slots come free only once they are learned from, and there are always enough.

See NOTE [Collection waits].
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.config.validation import check
from sfactory.layout import Layout
from tests.support.assembly import Assembly

ROLLOUT = 2
SYNCHRONOUS = {"num_batches_to_accumulate": 2, "async_rl": False}


def config_with(actors: int, splits: int, rows: int, dataset_rows: int, **flags: Any) -> Config:
    """A configuration of these sizes; collection waits for the learner unless ``flags`` say otherwise."""
    sizes = {
        "env": "any",
        "num_workers": actors,
        "num_envs_per_worker": splits * rows,
        "worker_num_splits": splits,
        "rollout": ROLLOUT,
        "batch_size": dataset_rows * ROLLOUT,
        "num_batches_to_accumulate": 0,
    }
    return config_of({**sizes, **flags})


def layout_of(config: Config) -> Layout:
    return Layout.plan(config.sampling, config.learner, "central")


def background(accumulated: int, wanted: bool) -> dict[str, Any]:
    """Flags of asynchronous collection."""
    own = {"train_in_background_thread": wanted, "min_traj_buffers_per_worker": 4}
    return {"num_batches_to_accumulate": accumulated, **own}


# 6 splits; planned: whether slots come free only after training, slots of each split, and datasets.
@pytest.mark.parametrize(
    ("rows", "dataset_rows", "flags", "planned"),
    [
        (2, 12, {}, (True, 1, 1)),  # 6 splits of 2 rows give 12 at once
        (2, 26, {}, (True, 3, 1)),
        (5, 30, {}, (True, 1, 1)),
        (5, 31, {}, (True, 2, 1)),  # no slot is left with a rest of rows that waits for the next dataset
        (5, 26, {}, (True, 1, 1)),
        (5, 27, {}, (True, 2, 1)),
        (100, 3, {}, (True, 1, 1)),
        # Without async_rl a dataset takes all slots exactly.
        (4, 24, SYNCHRONOUS, (True, 1, 1)),
        (4, 72, SYNCHRONOUS, (True, 3, 1)),
        (5, 31, background(1, True), (False, 4, 1)),
        (5, 31, background(3, True), (False, 4, 3)),
        (5, 31, background(3, False), (False, 4, 1)),
    ],
)
def test_every_split_owns_the_slots_that_a_dataset_takes_of_it(
    rows: int, dataset_rows: int, flags: dict[str, Any], planned: tuple[bool, int, int]
) -> None:
    config = config_with(3, 2, rows, dataset_rows, **flags)
    layout = layout_of(config)

    assert (layout.slots_until_trained, layout.slots_per_split, layout.datasets) == planned
    assert layout.num_slots == 6 * layout.slots_per_split
    assert flags is not SYNCHRONOUS or check(config) == []


@settings(max_examples=60, deadline=None)
@given(
    actors=st.integers(1, 3),
    splits=st.integers(1, 3),
    rows=st.integers(1, 7),
    dataset_rows=st.integers(1, 40),
    seed=st.integers(0, 999),
)
def test_slots_suffice_for_every_dataset_and_come_free_only_after_training(
    actors: int, splits: int, rows: int, dataset_rows: int, seed: int
) -> None:
    parts = Assembly(layout_of(config_with(actors, splits, rows, dataset_rows)))
    order, delivered = random.Random(seed), list[int]()
    for _ in range(5):
        # Each look of the learner comes after some slots were filled, in any order.
        while not parts.advance():
            free = parts.free_slots()
            assert free, f"deadlock: {parts.staging.filled} of {dataset_rows} rows"
            parts.send(*order.sample(free, order.randint(1, len(free))))
        # Collection comes to rest while the learner trains, and nothing was freed meanwhile.
        parts.send(*parts.free_slots())
        assert parts.freed() == []
        delivered += parts.marks()
        parts.staging.clear()

        parts.batcher.trained()

        # Free are the slots that went into datasets whole.
        begun = sum(parts.table.generation(slot) for slot in range(parts.layout.num_slots))
        assert sorted(parts.freed()) == parts.free_slots()
        assert len(parts.free_slots()) == parts.layout.num_slots - (begun - len(delivered) // rows)
    assert delivered == parts.sent[: len(delivered)]
    assert len(delivered) == 5 * dataset_rows
