"""A dataset in the making takes columns of slots, each bit as it is, and counts what in it is valid."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from sfactory.layout import Layout
from sfactory.learner.staging import CopyThreads, Staging
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.spec import BoxHead, DiscreteHead, EnvSpec, TensorSpec
from tests.support.parts import small_layout

SPEC = EnvSpec(
    obs=(("image", TensorSpec((2, 2), "uint8")), ("number", TensorSpec((), "int64"))),
    actions=(DiscreteHead("jump", 3), BoxHead("arm", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))),
)
SCALARS = ("log_prob", "value", "reward", "terminated", "valid", "policy_version")


def filled_slots(layout: Layout, seed: int = 0) -> list[Slot]:
    rng = np.random.default_rng(seed)
    slots = TrajectoryBuffer(SPEC, layout).slots()
    for slot in slots:
        arrays = [*slot.obs.values(), *slot.actions.values(), *(getattr(slot, name) for name in SCALARS)]
        for array in arrays:
            array[...] = rng.integers(0, 200, array.shape) if array.dtype != bool else rng.random(array.shape) < 0.5
    return slots


def assert_columns(staging: Staging, columns: list[tuple[Slot, int]]) -> None:
    """Column r of the dataset is that column of that slot, in every field."""
    for target, (slot, source) in enumerate(columns):
        for key, tensor in staging.obs.items():
            assert np.array_equal(tensor[:, target].numpy(), slot.obs[key][:, source]), key
        for key, tensor in staging.actions.items():
            assert np.array_equal(tensor[:, target].numpy(), slot.actions[key][:, source]), key
        for name in SCALARS:
            assert np.array_equal(staging.scalars[name][:, target].numpy(), getattr(slot, name)[:, source]), name


def test_a_dataset_has_one_more_observation_than_steps() -> None:
    staging = Staging(SPEC, small_layout(rollout=4, dataset_rows=5), pin=False)

    assert {key: tuple(tensor.shape) for key, tensor in staging.obs.items()} == {
        "image": (5, 5, 2, 2),
        "number": (5, 5),
    }
    assert {key: tuple(tensor.shape) for key, tensor in staging.actions.items()} == {"jump": (4, 5), "arm": (4, 5, 2)}
    assert (staging.obs["image"].dtype, staging.actions["jump"].dtype) == (torch.uint8, torch.int64)
    assert set(staging.scalars) == set(SCALARS)
    assert (staging.rows, staging.filled, staging.full) == (5, 0, False)


def test_slots_are_joined_and_the_last_one_is_cut() -> None:
    layout = small_layout(rows=3, dataset_rows=5)
    first, second, *_ = filled_slots(layout)
    staging = Staging(SPEC, layout, pin=False)

    taken = [staging.take(first, 0), staging.take(second, 0)]

    assert taken == [3, 2]
    assert staging.full
    assert_columns(staging, [(first, 0), (first, 1), (first, 2), (second, 0), (second, 1)])


def test_valid_steps_are_counted_until_clear() -> None:
    layout = small_layout(rows=3, dataset_rows=4)
    first, second, *_ = filled_slots(layout)
    staging = Staging(SPEC, layout, pin=False)

    staging.take(first, 0)
    after_first = staging.valid_steps
    staging.take(second, 0)

    assert after_first == first.valid.sum() > 0
    assert staging.valid_steps == first.valid.sum() + second.valid[:, 0].sum() == staging.scalars["valid"].sum()
    staging.clear()
    assert staging.valid_steps == 0


def copy_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("copy_")}


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("state_size", [0, 3])
def test_many_threads_copy_the_same_bytes_as_one(state_size: int, threads: int) -> None:
    layout = small_layout(rows=3, dataset_rows=5, state_size=state_size, recurrence=2, rollout=4)
    first, second, *_ = filled_slots(layout)
    rng = np.random.default_rng(1)
    for slot in (first, second):
        slot.rnn_states[...] = rng.normal(size=slot.rnn_states.shape)
        slot.is_first[...] = rng.random(slot.is_first.shape) < 0.5
    one, many = Staging(SPEC, layout, pin=False), Staging(SPEC, layout, pin=False, copying=CopyThreads(threads))

    taken = [[staging.take(slot, 0) for slot in (first, second)] for staging in (one, many)]

    assert taken == [[3, 2]] * 2
    assert_columns(many, [(first, 0), (first, 1), (first, 2), (second, 0), (second, 1)])
    if state_size:
        assert torch.equal(many.is_first, one.is_first)
        assert torch.equal(many.rnn_states, one.rnn_states)
        assert one.rnn_states.abs().sum(dim=(0, 2)).all()
    assert many.valid_steps == one.valid_steps > 0


@pytest.mark.parametrize("threads", [1, 3])
def test_copying_is_shared_by_as_many_threads_as_were_ordered_for_all_areas_together(threads: int) -> None:
    layout = small_layout(rows=3, dataset_rows=30)
    slots = filled_slots(layout)
    before = copy_threads()
    copying = CopyThreads(threads)
    areas = [Staging(SPEC, layout, pin=False, copying=copying) for _ in range(3)]

    for staging in areas:
        for slot in slots:
            staging.take(slot, 0)

    started = copy_threads() - before
    # One thread is the learner's own; a pool starts no more threads than it has use for.
    assert len(started) == 0 if threads == 1 else 1 <= len(started) <= threads
    assert {int(thread.name.removeprefix("copy_")) for thread in started} <= set(range(threads))
