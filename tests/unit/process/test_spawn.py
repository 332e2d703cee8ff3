"""The fork server and its watcher start, are replaced when the server has ended, and leave nothing behind."""

from __future__ import annotations

import dataclasses
import errno
import logging
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from sfactory.errors import ConfigError, ResourceError
from sfactory.process import spawn
from sfactory.process.orphans import adopt_orphans, children_of
from sfactory.process.spawn import ChildSpec, Spawner, child_main
from sfactory.process.stack_dump import StackDump, is_alive
from sfactory.process.watcher import show_unless_interrupted
from sfactory.shared.status import FailureBoard, StatusBoard, StatusRow
from tests.support.processes import eventually
from tests.support.terminal import Terminal

WITHIN_S = 60.0


@pytest.mark.parametrize(("sent", "shown"), [(b"", False), (b"\x80\x04\x95", False), (b"cnowhere\nnothing\n.", True)])
def test_a_child_that_is_sent_no_work_as_main_was_interrupted_shows_no_traceback(
    sent: bytes, shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)

    try:
        multiprocessing.spawn._main(reading, reading)  # as a child of the fork server
    except Exception as error:
        show_unless_interrupted(type(error), error, error.__traceback__)

    assert ("Traceback" in capfd.readouterr().err) == shown


def leave_a_program(pids: Path) -> None:
    adopt_orphans()
    program = subprocess.Popen(["sleep", "9999"])
    pids.with_suffix(".new").write_text(str(program.pid))
    pids.with_suffix(".new").rename(pids)
    time.sleep(9999)


def test_what_an_env_leaves_behind_as_the_server_ends_is_ended_before_another_one_starts(
    tmp_path: Path,
) -> None:
    spawner, pids = Spawner(), tmp_path / "pids"
    spawner.open()
    actor, watcher = spawner.start("actor", leave_a_program, pids), Spawner._watcher or 0
    assert eventually(pids.exists, WITHIN_S)
    program, (server,) = int(pids.read_text()), children_of(watcher)

    os.kill(watcher, signal.SIGSTOP)  # it sees both ends at once
    both = actor.pid or 0, server
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not any(map(is_alive, both)), WITHIN_S)
    os.kill(watcher, signal.SIGCONT)

    assert eventually(lambda: program in children_of(watcher), WITHIN_S)
    with pytest.raises(ResourceError):
        spawner.start("next", leave_a_program, pids)
    assert is_alive(program), "the watcher has taken it for the server's"
    spawner.open()
    assert not is_alive(program)
    assert not is_alive(watcher)
    assert Spawner._watcher != watcher


DIES_A_THREAD_AT_A_TIME = """
import ctypes, os, sys, threading
from sfactory.process import spawn
del spawn._PRELOAD[1:]  # all but the watcher
spawner = spawn.Spawner()
spawner.open()
spawner.start("child", print).join()
spawner.view_is_open(True)
print("\\x1b[1;9r", end="", file=sys.stderr, flush=True)
threading.Thread(target=lambda: (sys.stdin.readline(), os._exit(0))).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_the_watcher_acts_once_all_threads_of_a_killed_main_have_ended() -> None:
    terminal = Terminal()
    program = [sys.executable, "-c", DIES_A_THREAD_AT_A_TIME]
    main = subprocess.Popen(program, stdin=subprocess.PIPE, stderr=terminal.fd)

    assert eventually(lambda: bool(terminal.rows(0.1)) and terminal.region() == (0, 8), WITHIN_S)
    terminal.rows(0.5)
    assert terminal.region() == (0, 8)
    main.communicate(b"\n", WITHIN_S)
    assert eventually(lambda: bool(terminal.rows(0.1)) and terminal.region() is None, 20.0)
    terminal.close()


SHOWS_A_VARIABLE = """
import os, sys
SEEN = os.environ.get("OF_THE_ENV"), os.environ.get("OF_BEFORE")
if __name__ == "__main__":
    from sfactory.process import spawn
    del spawn._PRELOAD[1:]  # all but the watcher
    os.environ["OF_BEFORE"] = "here"
    spawn.Spawner().open()
    os.environ["OF_THE_ENV"] = "1"
    del os.environ["OF_BEFORE"]
    spawner = spawn.Spawner()
    os.environ["OF_THE_ENV"] = "2"
    spawner.start("child", exec, "import sys; print(*sys.modules['__mp_main__'].SEEN, flush=True)").join()
"""


def test_children_have_the_environment_variables_of_the_call_when_they_import_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SHOWS_A_VARIABLE)

    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)

    assert ended.stdout == "1 None\n"


def talk(printed: Path, spec: ChildSpec) -> None:
    os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT), 2)
    child_main(spec, say_news)


def say_news(_row: StatusRow) -> None:
    logging.info("news")
    logging.warning("trouble")


@pytest.mark.parametrize(
    ("printed_level", "to_file", "printed", "logged"),
    [
        (logging.INFO, False, ["news", "trouble"], []),
        (logging.WARNING, False, ["trouble"], []),
        (logging.WARNING, True, ["trouble"], ["news", "trouble"]),
    ],
)
def test_a_child_prints_messages_of_the_level_that_main_prints_and_logs_all(
    tmp_path: Path, printed_level: int, to_file: bool, printed: list[str], logged: list[str]
) -> None:
    spawner, shown, log = Spawner(printed_level=printed_level), tmp_path / "shown", tmp_path / "log"
    spawner.open()
    spec = ChildSpec("sf-actor-0", StatusBoard(["sf-actor-0"]), FailureBoard(["sf-actor-0"]), 0, StackDump())

    process = spawner.start("sf-actor-0", talk, shown, dataclasses.replace(spec, log_path=log if to_file else None))
    process.join(WITHIN_S)

    assert process.exitcode == 0
    assert [line.split()[-1] for line in shown.read_text().splitlines()] == printed
    assert [line.split()[-1] for line in (log.read_text() if to_file else "").splitlines()] == logged


@pytest.mark.parametrize(
    ("error", "advice", "is_lost"),
    [
        (EOFError(), True, True),
        (ConnectionRefusedError(), True, True),
        (OSError(errno.EAGAIN, "x"), True, False),
        (OSError(errno.ENOMEM, "x"), True, False),
        (OSError(errno.EMFILE, "x"), False, False),
        (ValueError("too many fds"), False, False),
    ],
)
def test_limits_of_memory_and_processes_are_named_where_they_may_be_the_cause(
    monkeypatch: pytest.MonkeyPatch, error: Exception, advice: bool, is_lost: bool
) -> None:
    monkeypatch.setattr(Spawner, "_is_lost", False)

    with pytest.raises(ResourceError) as caught, spawn._starting("sf-actor-0"):
        raise error

    assert ("--pids-limit" in str(caught.value)) == advice
    assert Spawner._is_lost == is_lost


def test_a_server_that_cannot_be_started_leaves_no_variables_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> None:
        raise BlockingIOError(errno.EAGAIN, "x")

    before = dict(os.environ)
    monkeypatch.setattr(forkserver, "ensure_running", cannot)

    with pytest.raises(ResourceError):
        Spawner().start("sf-actor-0", print)

    assert dict(os.environ) == before


def test_a_process_that_was_forked_from_one_with_a_fork_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver._forkserver, "_forkserver_pid", os.getppid())

    with pytest.raises(ConfigError, match="forked"):
        Spawner().open()
