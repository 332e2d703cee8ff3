"""What the process tests rely on to see that nothing is left: it sees what is there, and only that."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import (
    RUN_ID,
    SHM,
    catches_signal,
    eventually,
    maps_library,
    processes_of,
    shm_left_since,
    shm_names,
)
from tests.support.trainer import to_argv

GRANDCHILD = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[str, int, int]]:
    """A run id, and the process ids of a child and of a grandchild in a session of its own."""
    run_id = uuid.uuid4().hex
    child = subprocess.Popen(
        [sys.executable, "-c", GRANDCHILD], env={**os.environ, RUN_ID: run_id}, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    yield run_id, child.pid, grandchild
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGKILL)
    child.stdout.close()
    child.wait()


def test_descendants_are_found_even_when_their_parent_is_dead(family: tuple[str, int, int]) -> None:
    run_id, child, grandchild = family
    assert set(processes_of(run_id)) == {child, grandchild}

    os.kill(child, signal.SIGKILL)

    # The child is a zombie now, since nobody has waited for it: that is not alive.
    assert eventually(lambda: set(processes_of(run_id)) == {grandchild}, within_s=30)


def test_processes_of_another_run_are_not_found(family: tuple[str, int, int]) -> None:
    assert processes_of(uuid.uuid4().hex) == {}


def test_signal_handlers_of_another_process_are_seen(family: tuple[str, int, int]) -> None:
    _, child, grandchild = family

    assert catches_signal(child, signal.SIGTERM)
    assert not catches_signal(child, signal.SIGHUP)
    assert not catches_signal(grandchild, signal.SIGTERM)


def test_libraries_of_another_process_are_seen(family: tuple[str, int, int]) -> None:
    assert maps_library(family[1], "libc")
    assert not maps_library(family[1], "libtorch")


def test_shared_memory_counts_as_left_once_nobody_maps_it() -> None:
    before = shm_names()
    name = f"sfactory-test-{uuid.uuid4().hex}"
    path = Path(SHM) / name
    try:
        with path.open("w+b") as file:
            file.truncate(4096)
            with mmap.mmap(file.fileno(), 4096):
                assert name not in shm_left_since(before)
        assert name in shm_left_since(before)
    finally:
        path.unlink()
    assert name not in shm_left_since(before)


def test_eventually_tells_whether_it_came_true() -> None:
    answers = iter([False, False, True])

    assert eventually(lambda: next(answers), within_s=30, every_s=0)
    assert not eventually(lambda: False, within_s=0)


def test_flags_are_typed_as_a_user_would() -> None:
    flags = {
        "seed": 3,
        "with_tensorboard": False,
        "encoder_mlp_layers": (16, 8),
        "env_kwargs": {"raise_at": 2},
        "resume": None,
    }

    assert to_argv(flags) == [
        "--seed=3",
        "--with_tensorboard=False",
        "--encoder_mlp_layers",
        "16",
        "8",
        '--env_kwargs={"raise_at": 2}',
    ]
