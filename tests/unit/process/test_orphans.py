"""Processes that envs have started in main end with the run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.long import long

POOL = """
import multiprocessing, os, signal
from sfactory.process.orphans import children_of, new_children_end

with new_children_end():
    pool = multiprocessing.get_context("fork").Pool(2)
    assert pool.map(abs, [-1, 2]) == [1, 2]
    for worker in pool._pool if {killed} else ():
        os.kill(worker.pid, signal.SIGKILL)
assert not children_of(os.getpid())
"""


@pytest.mark.parametrize("killed", [False, long(True)])
def test_pool_that_an_env_does_not_close_holds_up_neither_the_end_of_its_run_nor_the_exit(killed: bool) -> None:
    program = [sys.executable, "-c", POOL.format(killed=killed)]

    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)

    assert ended.returncode == 0, ended.stderr
