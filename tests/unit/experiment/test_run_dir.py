"""One run at a time owns an experiment's folder, and run.json records its sessions."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from sfactory import __version__
from sfactory.checkpoint.directory import CheckpointDir
from sfactory.errors import CannotSaveError, RunDirError
from sfactory.experiment.run_dir import RunDir, is_held, keep_unreadable, saved_env_steps
from sfactory.process.signals import Interrupted, Interrupts
from tests.support.files import write_files
from tests.support.source import ROOT

HOLD = """
import sys
from sfactory.experiment.run_dir import RunDir
with RunDir.open(sys.argv[1], "exp"):
    print("held", "torch" in sys.modules, flush=True)
    sys.stdin.read()
"""


def holder(train_dir: Path) -> subprocess.Popen[str]:
    """Another process that holds the folder until its stdin is closed."""
    command, pipe = [sys.executable, "-c", HOLD, str(train_dir)], subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def assert_is_new(train_dir: Path) -> None:
    """The run's folder is empty and locked; the one that was moved to ``old`` is not locked."""
    assert [path.name for path in (train_dir / "exp").iterdir()] == [".lock"]
    with pytest.raises(RunDirError, match=f"in use by process {os.getpid()}"):
        RunDir.open(train_dir, "exp")
    RunDir.open(train_dir, "old").close()


def test_a_second_run_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert first.stdout is not None
    assert first.stdout.readline().split() == ["held", "False"], "opening a run directory must not import torch"

    with pytest.raises(RunDirError) as caught:
        RunDir.open(tmp_path, "exp")
    RunDir.open(tmp_path, "another").close()
    first.kill()
    first.communicate()

    assert f"process {first.pid} on host {socket.gethostname()}" in str(caught.value)
    left = tmp_path / "exp" / ".tmp-1-dead"  # by a process that was killed while it wrote a file
    left.touch()
    with RunDir.open(tmp_path, "exp") as run:
        assert not left.exists()
        assert json.loads((run.path / ".lock").read_text())["pid"] == os.getpid()


def test_a_child_that_outlives_the_run_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = "print('started', flush=True); input()"
    with RunDir.open(tmp_path, "exp"):
        # close_fds=False is the worst case: all that may be inherited is.
        pipe = subprocess.PIPE
        child = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, close_fds=False)
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n"

    RunDir.open(tmp_path, "exp").close()

    child.communicate(b"\n")


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    forked: list[int] = []

    def fork(run: RunDir) -> None:
        assert run._lock_fd is not None
        forked.append(os.dup(run._lock_fd))  # the same open file, as a forked process has it

    run = RunDir.open(tmp_path, "exp")
    fork(run)
    run.move_to(tmp_path / "old")
    RunDir.open(tmp_path, "old").close()
    fork(run)
    run.put_back(tmp_path / "old", tmp_path / "new")
    fork(run)
    run.close()

    assert not is_held(tmp_path / "exp")
    RunDir.open(tmp_path, "exp").close()
    for fd in forked:
        os.close(fd)


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / ".lock").symlink_to(precious)

    for train_dir in (tmp_path, precious):
        with pytest.raises(RunDirError, match="cannot be used"):
            RunDir.open(train_dir, "exp")

    assert precious.read_text() == "keep"


def test_a_start_on_a_full_disk_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", is_full)
        with pytest.raises(RunDirError, match="No space left on device"):
            RunDir.open(tmp_path / "runs", "exp")

    assert list(tmp_path.iterdir()) == []


def test_run_json_records_the_sessions_without_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2-secret")
    statuses = []
    for seed, last in ((1, "interrupted"), (2, "done")):
        with RunDir.open(tmp_path / "new", "exp") as run:
            for status in ("running", last):
                run.write_run_json(status, argv=["--env=CartPole-v1"], seed=seed)  # type: ignore[arg-type]
                statuses.append(json.loads(run.run_json.read_text())["status"])

    record = json.loads(run.run_json.read_text())
    assert statuses == ["running", "interrupted", "running", "done"]
    assert [(item["seed"], item["status"]) for item in record["sessions"]] == [(1, "interrupted"), (2, "done")]
    assert (record["argv"], record["seed"]) == (["--env=CartPole-v1"], 2)
    assert (record["versions"]["sfactory"], record["versions"]["numpy"]) == (__version__, np.__version__)
    assert record["hostname"] == socket.gethostname()
    assert "hunter2-secret" not in run.run_json.read_text()


def test_an_unreadable_run_json_is_renamed_and_does_not_stop_the_run(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "exp") as run:
        run.run_json.write_text("{half")
        run.write_run_json("running", argv=[], seed=None)

    assert json.loads(run.run_json.read_text())["status"] == "running"
    assert (run.path / "run.json.unreadable").read_text() == "{half"


def test_a_folder_that_is_renamed_or_removed_is_noticed_and_left_alone(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "renamed") as run, RunDir.open(tmp_path, "removed") as other:
        run.require_held()
        run.path.rename(tmp_path / "new one")
        shutil.rmtree(other.path)
        RunDir.open(tmp_path, "removed").close()  # of a second run

        place = f"--train_dir={tmp_path} '--experiment=new one'"
        with pytest.raises(
            CannotSaveError, match=f"renamed was renamed to {tmp_path}/new one under .* resume it there with {place}"
        ):
            run.require_held()
        with pytest.raises(CannotSaveError, match="removed was removed"):
            other.require_held()
        for each in (run, other):
            each.write_run_json("failed", argv=[], seed=None)
        with pytest.raises(RunDirError, match="in use"):
            RunDir.open(tmp_path, "new one")

    assert sorted(path.name for path in tmp_path.rglob("*")) == [".lock", ".lock", "new one", "removed"]


def test_a_folder_is_moved_while_it_is_held_or_stays(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "exp") as run:
        (run.path / "config.json").write_text("old")
        (tmp_path / "file").write_text("in the way")

        with pytest.raises(RunDirError, match="could not be moved"):
            run.move_to(tmp_path / "file")
        assert (run.path / "config.json").read_text() == "old"
        run.move_to(tmp_path / "old")

        assert_is_new(tmp_path)
        assert (tmp_path / "old" / "config.json").read_text() == "old"
    RunDir.open(tmp_path, "exp").close()


def test_a_lock_opened_before_the_folder_was_moved_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.open(tmp_path, "exp")
    (run.path / "config.json").write_text("old")
    lock, opened = fcntl.flock, []

    def move_first(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        opened.append(fd)
        # Between another process's open and its lock, this one moves the folder and ends.
        run.move_to(tmp_path / "old")
        run.close()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", move_first)
    other = RunDir.open(tmp_path, "exp")

    assert len(opened) == 1
    assert_is_new(tmp_path)
    other.close()


@pytest.mark.parametrize("call", ["rename", "mkdir"])
def test_a_signal_while_a_folder_is_moved_is_handled_after_the_new_one_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run = RunDir.open(tmp_path, "exp")
    holder = os if call == "rename" else Path
    plain, idle = getattr(holder, call), threading.Event()
    thread = threading.Thread(target=idle.wait)  # one that does not block the signal, as those of BLAS do not

    def interrupted(*given: object, **named: object) -> None:
        monkeypatch.setattr(holder, call, plain)
        plain(*given, **named)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(holder, call, interrupted)
    thread.start()
    with Interrupts() as interrupts:
        with pytest.raises(Interrupted):
            run.move_to(tmp_path / "old")
        idle.set()
        thread.join()
        assert interrupts.count == 1
        interrupts.count = 0  # so that the handlers of before come back

    assert_is_new(tmp_path)
    run.close()


def test_each_record_that_cannot_be_read_is_kept(tmp_path: Path) -> None:
    for text in ("{first", "{second", "{third"):
        (tmp_path / "run.json").write_text(text)
        keep_unreadable(tmp_path / "run.json", ValueError("no JSON"))

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "run.json.unreadable": "{first",
        "run.json.unreadable0001": "{second",
        "run.json.unreadable0002": "{third",
    }


def test_saved_steps_are_those_of_the_run_which_policies_of_one_env_take_together(tmp_path: Path) -> None:
    for policy, counted_by_it in enumerate((1000, 0)):
        directory = CheckpointDir(tmp_path / f"checkpoint_p{policy}", keep=2)
        directory.save({"run_env_steps": counted_by_it // 2}, 5, 500)
        directory.save({"run_env_steps": counted_by_it}, 10, 1000)
    assert saved_env_steps(tmp_path) == 1000

    for record in ("{}", "{", '{"run_env_steps": Infinity}'):  # such as an older version has written, and damaged ones
        write_files(tmp_path / "checkpoint_p1", {"checkpoint_000000010_1000.pth.json": record})
        assert saved_env_steps(tmp_path) == 2000
    assert saved_env_steps(tmp_path / "other") == 0
