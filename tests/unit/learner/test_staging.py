"""A staging area takes columns of slots, each bit as it is, and counts its valid steps."""

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

    taken = [staging.take(first, 0), staging.take(second, 0)]

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


@pytest.mark.parametrize("threads", [1, 3])
def test_copying_is_shared_by_as_many_threads_as_were_ordered_for_all_areas_together(threads: int) -> None:
    def copy_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("copy_")}

    layout = small_layout(rows=3, dataset_rows=30)
    before, copying = copy_threads(), CopyThreads(threads)

    for staging in [Staging(SPEC, layout, pin=False, copying=copying) for _ in range(3)]:
        for slot in filled_slots(layout):
            staging.take(slot, 0)

    started = len(copy_threads() - before)
    # One thread is the learner's own; a pool starts no more threads than it has use for.
    assert started == 0 if threads == 1 else 1 <= started <= threads


def test_a_dataset_has_one_more_observation_than_steps() -> None:
    staging = Staging(SPEC, small_layout(rollout=4, dataset_rows=5), pin=False)

    shapes = {key: tuple(tensor.shape) for key, tensor in {**staging.obs, **staging.actions}.items()}
    assert shapes == {"image": (5, 5, 2, 2), "number": (5, 5), "jump": (4, 5), "arm": (4, 5, 2)}
    assert (staging.obs["image"].dtype, staging.actions["jump"].dtype) == (torch.uint8, torch.int64)
