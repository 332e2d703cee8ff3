"""Processes that envs have started in main end with the run, or with main."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sfactory.process import watcher
from sfactory.process.orphans import NamedMemory, adopt_orphans, children_of, name_of
from sfactory.process.spawn import Spawner
from sfactory.process.stack_dump import is_alive
from sfactory.runner.serial import processes_of_envs_end
from tests.support.long import long
from tests.support.processes import eventually

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

OTHERS = """
import multiprocessing, os, subprocess
from sfactory.process.orphans import children_of, new_children_end

with new_children_end() as started:
    of_env = subprocess.Popen(["sleep", "60"])
    started.pause()
    own, pool = subprocess.Popen(["sleep", "60"]), multiprocessing.get_context("fork").Pool(1)
    started.resume()
    of_env_too = subprocess.Popen(["sleep", "60"])
    started.pause()
    own_too = subprocess.Popen(["sleep", "60"])
assert (own.poll(), own_too.poll()) == (None, None)
assert pool.map(abs, [-1]) == [1]
assert children_of(os.getpid()).isdisjoint({of_env.pid, of_env_too.pid})
for process in (own, own_too):
    process.kill()
pool.terminate()
"""

SIDE_BY_SIDE = """
import contextlib, os, subprocess
from sfactory.process.orphans import children_of, new_children_end

one, other = contextlib.ExitStack(), contextlib.ExitStack()
one.enter_context(new_children_end()).pause()
other.enter_context(new_children_end())
one.close()
orphan = int(subprocess.check_output(["sh", "-c", "sleep 60 >&- & echo $!"]))
assert orphan in children_of(os.getpid())
other.close()
assert orphan not in children_of(os.getpid())
"""

WITH_A_SERVER = """
from multiprocessing import forkserver
from sfactory.process import spawn

spawn._SERVER_END_S = 30.0  # on a busy machine
forkserver.ensure_running()
print(forkserver._forkserver._forkserver_pid)
spawn.leave(0)
"""

MAPPING = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
print(flush=True)
sys.stdin.read()
"""


def test_named_memory_of_an_ended_process_is_removed_unless_it_is_older_or_another_process_maps_it() -> None:
    kinds = "older", "left\udcff", "shared", "folder"  # what is left has a name that is no UTF-8
    names = [f"sfactory-test-{os.getpid()}-{kind}" for kind in kinds]
    older, left, shared, folder = (Path("/dev/shm") / name for name in names)
    deep = folder / "data"

    def start(path: Path) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", MAPPING, str(path)]
        started = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert started.stdout is not None
        assert started.stdout.readline()
        return started

    try:
        folder.mkdir()
        for path in (older, deep):
            path.write_bytes(b"older")
        memory = NamedMemory()
        for path in (left, shared):
            path.write_bytes(b"new")
        ending, living = [start(path) for path in (older, left, shared, deep)], start(shared)

        memory.look([process.pid for process in ending])
        for process in ending:
            process.communicate()
        memory.remove()

        assert [path.exists() for path in (older, left, shared, deep)] == [True, False, True, True]
        living.communicate()
    finally:
        for path in (older, left, shared, deep):
            path.unlink(missing_ok=True)
        folder.rmdir()


def test_a_program_with_a_name_that_the_kernel_has_cut_within_a_letter_is_named_and_known(tmp_path: Path) -> None:
    path = tmp_path / "симулятор"
    path.symlink_to("/bin/sleep")
    with subprocess.Popen([path, "60"]) as program:
        is_named = eventually(lambda: name_of(program.pid) == "симулят\ufffd", 30.0)
        is_known = is_alive(program.pid), watcher._started(program.pid).isdigit()
        program.kill()

    assert is_named
    assert is_known == (True, True)


@pytest.mark.parametrize("killed", [False, long(True)])
def test_pool_that_an_env_does_not_close_holds_up_neither_the_end_of_its_run_nor_the_exit(killed: bool) -> None:
    program = [sys.executable, "-c", POOL.format(killed=killed)]

    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)

    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("program", [OTHERS, SIDE_BY_SIDE])
def test_with_a_serial_sampler_ends_what_its_envs_have_started_and_nothing_else(program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert ended.returncode == 0, ended.stderr


def test_envs_live_in_main_until_the_last_of_several_samplers_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[int]()
    monkeypatch.setattr(Spawner, "_signal", lambda _, signum: sent.append(signum))
    spawner, one, other = Spawner(), ExitStack(), ExitStack()

    one.enter_context(processes_of_envs_end(spawner))
    other.enter_context(processes_of_envs_end(spawner))
    one.close()
    other.close()

    assert sent == [*[watcher.ENVS_IN_MAIN] * 3, watcher.NO_ENVS_IN_MAIN]


@pytest.mark.parametrize("still_listed", [False, True])
def test_child_of_a_thread_that_ends_while_children_are_listed_is_among_them(
    still_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    may_end, read_text = threading.Event(), Path.read_text

    def starts() -> None:
        started.append(subprocess.Popen(["sleep", "60"]))
        may_end.wait(60)

    def read(path: Path, *given: Any) -> str:
        text = read_text(path, *given)
        if thread.is_alive():  # what was read is the first thread, which gets the child
            may_end.set()
            thread.join(60)
        return text

    thread = threading.Thread(target=starts)
    thread.start()
    while not started:
        may_end.wait(0.01)
    monkeypatch.setattr(Path, "read_text", read)
    if still_listed:  # as it is until the kernel, which may do something else first, has released it
        threads = os.listdir("/proc/self/task")
        monkeypatch.setattr(os, "listdir", lambda path: threads)
    try:
        assert started[0].pid in children_of(os.getpid())
        assert not thread.is_alive()
    finally:
        may_end.set()
        started[0].kill()
        started[0].wait()


def test_what_main_has_started_is_killed_if_main_listed_none_while_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    listed, main = set[int](), os.getppid()
    monkeypatch.setattr(watcher, "children_of", lambda pid: set(listed) if pid == main else children_of(pid))
    of_main = watcher.StartedByMain(main, NamedMemory())
    of_main.on = True
    with subprocess.Popen(["sleep", "60"]) as lives, subprocess.Popen(["sleep", "60"]) as ended:
        listed |= {lives.pid, ended.pid}
        of_main.look()
        ended.kill()
        ended.wait()
        listed.clear()

        of_main.look()
        of_main.kill()

        assert lives.wait(10) == -9


def test_a_fork_server_that_an_env_has_started_ends_before_its_process() -> None:
    adopt_orphans()
    try:
        ended = subprocess.run([sys.executable, "-c", WITH_A_SERVER], capture_output=True, text=True, timeout=60)

        assert ended.returncode == 0, ended.stderr
        assert int(ended.stdout) not in children_of(os.getpid()), "it is warned of as left behind by an env"
    finally:
        adopt_orphans(False)
