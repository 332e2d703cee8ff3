"""Shared memory and events are the same in all processes, have no name and leave nothing behind."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from scripts.process_facts import shm_names
from sfactory.shared.control import Control, Stop
from sfactory.shared.memory import SharedArrays, SharedEvent, planned_bytes
from sfactory.shared.status import FailureBoard
from sfactory.shared.weights import SharedWeights
from sfactory.spec import TensorSpec
from tests.support.processes import named_memory_since

FIELDS = {
    "image": TensorSpec((2, 3, 5), "uint8"),
    "flag": TensorSpec((3,), "bool"),
    "number": TensorSpec((), "float64"),
    "empty": TensorSpec((0, 4), "float32"),
}


def arrays() -> SharedArrays:
    return SharedArrays("test", FIELDS)


def test_arrays_start_as_zeros_with_their_shape_and_dtype() -> None:
    shared = arrays()

    for name, spec in FIELDS.items():
        assert shared[name].shape == spec.shape
        assert shared[name].dtype == spec.dtype
        assert not shared[name].any()
    assert "other" not in shared


def test_arrays_do_not_overlap_and_start_on_cache_lines() -> None:
    shared = arrays()
    shared["image"][:] = 255

    assert not shared["flag"].any()
    assert float(shared["number"]) == 0.0
    starts = [shared[name].__array_interface__["data"][0] for name in ("image", "flag", "number")]
    assert [(start - starts[0]) % 64 for start in starts] == [0, 0, 0]
    assert planned_bytes(FIELDS) == 3 * 64


def use_in_child(
    shared: SharedArrays, done: SharedEvent, control: Control, weights: SharedWeights, failures: FailureBoard
) -> None:
    assert weights.published.wait(60)
    target = np.zeros(weights.nbytes, np.uint8)
    assert weights.read_into(target) == (1, 2)
    assert target.tolist() == [5] * 100
    assert control.stop is Stop.NOW
    assert (control.objective(0), control.objective(1)) == (1.5, float("-inf"))
    shared["image"][:] += 1
    failures.write("b", "reason: ü")
    done.open()
    os._exit(9)


def test_spawned_child_shares_memory_and_events_and_they_survive_its_death() -> None:
    shared, done, control, weights = arrays(), SharedEvent(), Control(2), SharedWeights(100)
    failures = FailureBoard(["a", "b"])
    shared["image"][:] = 7
    control.order_stop(Stop.NOW)
    control.tell_objective(0, 1.5)
    everything = (shared, done, control, weights, failures)
    child = multiprocessing.get_context("spawn").Process(target=use_in_child, args=everything)
    child.start()

    weights.publish(np.full(100, 5, np.uint8), 2)
    child.join(60)

    assert child.exitcode == 9
    assert done.wait(0)
    assert (shared["image"] == 8).all()
    assert (failures.read("a"), failures.read("b")) == ("", "reason: ü")


def test_event_is_closed_until_it_is_opened() -> None:
    first = os.eventfd(0)
    event = SharedEvent(fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 1024))  # above what select() takes
    os.close(first)
    assert not event.wait(0.01)

    event.open()
    event.open()

    assert [event.wait(0) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("make", [arrays, SharedEvent])
def test_memory_has_no_name_and_leaves_no_open_file(make: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(make())
    gc.collect()
    files, names = len(os.listdir("/proc/self/fd")), shm_names()

    for _ in range(20):
        made = make()
        assert not named_memory_since(names)
    del made
    gc.collect()

    assert len(os.listdir("/proc/self/fd")) == files


def test_view_survives_its_block() -> None:
    shared = arrays()
    view = shared["image"]
    view[:] = 3

    del shared
    gc.collect()

    assert view.sum() == 3 * 30
