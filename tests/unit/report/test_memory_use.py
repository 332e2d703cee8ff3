"""Memory of processes is reported without shared memory, and only for running processes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from sfactory.report.scalars import memory_scalars, private_mb

MB = 2**20


def own_mb() -> float:
    megabytes = private_mb(os.getpid())
    assert megabytes is not None
    return megabytes


def test_private_memory_counts_and_shared_memory_does_not() -> None:
    before = own_mb()

    private = np.ones(256 * MB, np.uint8)
    with_private = own_mb()
    shared = mmap.mmap(-1, 256 * MB)
    np.frombuffer(shared, np.uint8)[:] = 1
    with_shared = own_mb()

    assert len(private) == 256 * MB
    assert 224 < with_private - before < 288
    assert abs(with_shared - with_private) < 32


@pytest.mark.parametrize("waited_for", [True, False])
def test_an_ended_process_has_no_memory(waited_for: bool) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended but still has a pid
    if waited_for:
        child.wait()

    assert private_mb(child.pid) is None
    child.communicate()


def test_total_is_the_sum_over_running_processes() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        scalars = memory_scalars({"sf-main": os.getpid(), "sf-actor-0": child.pid, "sf-actor-1": 0})

    assert list(scalars) == ["memory/sf-main_mb", "memory/sf-actor-0_mb", "memory/total_mb"]
    assert scalars["memory/total_mb"] == scalars["memory/sf-main_mb"] + scalars["memory/sf-actor-0_mb"]
    assert scalars["memory/sf-main_mb"] > 5


def test_names_with_the_same_pid_are_counted_once() -> None:
    scalars = memory_scalars({"sf-main": os.getpid(), "sf-actor-0": os.getpid(), "sf-learner-0": os.getpid()})

    assert list(scalars) == ["memory/sf-main_mb", "memory/total_mb"]
    assert scalars["memory/total_mb"] == scalars["memory/sf-main_mb"]
