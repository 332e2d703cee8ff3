"""Shared arrays are one memory in all processes, have no name, and go without a trace."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from multiprocessing.connection import Connection

import numpy as np
import pytest

from sfactory.shared.memory import SharedArrays, planned_bytes
from sfactory.spec import TensorSpec
from tests.support.processes import shm_names

FIELDS = {
    "image": TensorSpec((2, 3, 5), "uint8"),
    "flag": TensorSpec((3,), "bool"),
    "number": TensorSpec((), "float64"),
    "empty": TensorSpec((0, 4), "float32"),
}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def add_and_answer(shared: SharedArrays, sender: Connection) -> None:
    before = {name: shared[name].copy() for name in shared}
    shared["image"][:] += 1
    shared["flag"][1] = True
    sender.send(before)


def test_arrays_start_as_zeros_of_the_promised_shape_and_dtype() -> None:
    shared = SharedArrays("test", FIELDS)

    for name, spec in FIELDS.items():
        assert shared[name].shape == spec.shape
        assert shared[name].dtype == spec.dtype
        assert not shared[name].any()
    assert set(shared) == set(FIELDS)
    assert "image" in shared
    assert "other" not in shared


def test_arrays_do_not_overlap_and_begin_on_cache_lines() -> None:
    shared = SharedArrays("test", FIELDS)
    shared["image"][:] = 255

    assert not shared["flag"].any()
    assert float(shared["number"]) == 0.0
    starts = [shared[name].__array_interface__["data"][0] for name in ("image", "flag", "number")]
    assert [(start - starts[0]) % 64 for start in starts] == [0, 0, 0]
    assert shared.nbytes == planned_bytes(FIELDS) == 3 * 64


def test_a_spawned_child_sees_and_writes_the_same_memory() -> None:
    context = multiprocessing.get_context("spawn")
    shared, (receiver, sender) = SharedArrays("test", FIELDS), context.Pipe(duplex=False)
    shared["image"][:] = 7

    child = context.Process(target=add_and_answer, args=(shared, sender))
    child.start()
    sender.close()
    assert receiver.poll(60)
    seen = receiver.recv()
    child.join(60)

    assert child.exitcode == 0
    assert np.array_equal(seen["image"], np.full((2, 3, 5), 7, np.uint8))
    assert shared["image"].tolist() == np.full((2, 3, 5), 8).tolist()
    assert shared["flag"].tolist() == [False, True, False]


def test_nothing_appears_in_dev_shm() -> None:
    before = shm_names()

    shared = SharedArrays("test", FIELDS)

    assert shared.nbytes > 0
    assert shm_names() - before == frozenset()


def test_memory_travels_only_to_a_child_that_is_being_started() -> None:
    shared = SharedArrays("test", FIELDS)

    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(shared)


def test_arrays_leave_no_open_file_behind() -> None:
    SharedArrays("test", FIELDS)
    gc.collect()
    before = open_files()

    for _ in range(20):
        SharedArrays("test", FIELDS)
    gc.collect()

    assert open_files() == before


def test_a_view_outlives_the_block_it_is_of() -> None:
    shared = SharedArrays("test", FIELDS)
    view = shared["image"]
    view[:] = 3

    del shared
    gc.collect()

    assert view.sum() == 3 * 30
