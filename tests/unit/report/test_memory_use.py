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


def test_private_memory_counts_and_shared_memory_does_not() -> None:
    measured = [private_mb(os.getpid()) or 0.0]
    private = np.ones(256 * MB, np.uint8)
    measured.append(private_mb(os.getpid()) or 0.0)
    shared = mmap.mmap(-1, 256 * MB)
    np.frombuffer(shared, np.uint8)[:] = 1
    measured.append(private_mb(os.getpid()) or 0.0)

    before, with_private, with_shared = measured
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


def test_total_is_the_sum_over_running_processes_each_counted_once() -> None:
    own = os.getpid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        scalars = memory_scalars({"sf-main": own, "sf-actor-0": child.pid, "sf-actor-1": 0, "sf-learner-0": own})

    assert list(scalars) == ["memory/sf-main_mb", "memory/sf-actor-0_mb", "memory/total_mb"]
    assert scalars["memory/total_mb"] == scalars["memory/sf-main_mb"] + scalars["memory/sf-actor-0_mb"]
    assert scalars["memory/sf-main_mb"] > 5
