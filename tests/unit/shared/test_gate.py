"""A gate stays closed until somebody opens it, and then lets everybody through, in every process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle

import pytest

from sfactory.shared.memory import SharedEvent


def open_it(gate: SharedEvent) -> None:
    gate.open()


def test_a_closed_gate_lets_nobody_through() -> None:
    assert not SharedEvent().wait(0.01)


def test_an_open_gate_stays_open() -> None:
    gate = SharedEvent()
    gate.open()

    assert [gate.wait(0) for _ in range(3)] == [True, True, True]


def test_opening_twice_does_no_harm() -> None:
    gate = SharedEvent()

    gate.open()
    gate.open()

    assert gate.wait(0)


def test_a_gate_opened_by_a_child_is_open_here() -> None:
    gate = SharedEvent()
    child = multiprocessing.get_context("spawn").Process(target=open_it, args=(gate,))
    child.start()

    assert gate.wait(60)
    child.join(60)
    assert child.exitcode == 0


def test_a_gate_travels_only_to_a_child_that_is_being_started() -> None:
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(SharedEvent())


def test_gates_leave_no_open_file_behind() -> None:
    SharedEvent()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(20):
        SharedEvent()
    gc.collect()

    assert len(os.listdir("/proc/self/fd")) == before
