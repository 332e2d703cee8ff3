"""One run at a time owns an experiment's folder, and the folder tells what was run."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from sfactory import __version__
from sfactory.errors import RunDirError
from sfactory.experiment.run_dir import RunDir
from sfactory.process.signals import Interrupted, Interrupts
from tests.support.files import write_files

REPO = Path(__file__).resolve().parents[3]

HOLD = """
import sys
from sfactory.experiment.run_dir import RunDir
with RunDir.open(sys.argv[1], "exp"):
    print("held", "torch" in sys.modules, flush=True)
    sys.stdin.read()
"""


def holder(train_dir: Path) -> subprocess.Popen[str]:
    """Another process that holds the folder until its stdin is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(train_dir)],
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_paths_lie_in_the_experiments_folder(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "new" / "train_dir", "exp") as run:
        assert run.path == tmp_path / "new" / "train_dir" / "exp"
        assert run.path.is_dir()
        paths = [run.config_path, run.run_json, run.metrics_path, run.summary_path, run.log_path, run.checkpoint_dir(3)]

    assert [str(path.relative_to(run.path)) for path in paths] == [
        "config.json",
        "run.json",
        "metrics.jsonl",
        "summary.json",
        "sf_log.txt",
        "checkpoint_p3",
    ]


def test_a_second_run_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert first.stdout is not None
    held = first.stdout.readline().split()

    with pytest.raises(RunDirError) as caught:
        RunDir.open(tmp_path, "exp")
    first.communicate("")

    assert held == ["held", "False"], "opening a run directory must not import torch"
    assert f"process {first.pid} on host {socket.gethostname()}" in str(caught.value)
    with RunDir.open(tmp_path, "exp") as run:
        assert json.loads((run.path / ".lock").read_text())["pid"] == os.getpid()


def test_a_killed_run_leaves_no_lock_behind(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert first.stdout is not None
    first.stdout.readline()

    first.kill()
    first.communicate()

    RunDir.open(tmp_path, "exp").close()


def test_a_child_that_outlives_the_run_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = "print('started', flush=True); input()"
    with RunDir.open(tmp_path, "exp"):
        # close_fds=False is the worst case: all that may be inherited is.
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n"

    RunDir.open(tmp_path, "exp").close()

    child.communicate(b"\n")
    assert child.returncode == 0


def test_two_experiments_of_one_train_dir_run_side_by_side(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "a") as a, RunDir.open(tmp_path, "b") as b:
        assert a.path != b.path


def test_a_train_dir_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(RunDirError, match="cannot be used"):
        RunDir.open(tmp_path / "file", "exp")


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / ".lock").symlink_to(precious)

    with pytest.raises(RunDirError, match="cannot be used"):
        RunDir.open(tmp_path, "exp")

    assert precious.read_text() == "keep"


def test_run_json_tells_what_was_run_and_how_it_ended(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "exp") as run:
        run.write_run_json("running", argv=["--env=CartPole-v1", "--seed=7"], seed=7)
        during = json.loads(run.run_json.read_text())
        run.write_run_json("done", argv=["--env=CartPole-v1", "--seed=7"], seed=7)
        after = json.loads(run.run_json.read_text())

    assert during["status"] == "running"
    assert after["status"] == "done"
    assert after["argv"] == ["--env=CartPole-v1", "--seed=7"]
    assert after["seed"] == 7
    assert after["versions"]["sfactory"] == __version__
    assert after["versions"]["numpy"] == np.__version__
    assert after["versions"]["python"] == sys.version.split()[0]
    assert set(after["versions"]) == {"python", "sfactory", "torch", "numpy", "gymnasium"}
    assert after["hostname"] == socket.gethostname()
    assert after["cpu"]
    assert after["started"] == during["started"]
    assert [session["status"] for session in after["sessions"]] == ["done"]


def test_a_resumed_run_adds_a_session(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "exp") as run:
        run.write_run_json("running", argv=["--seed=1"], seed=1)
        run.write_run_json("interrupted", argv=["--seed=1"], seed=1)
    with RunDir.open(tmp_path, "exp") as run:
        run.write_run_json("running", argv=["--seed=2"], seed=2)
        run.write_run_json("done", argv=["--seed=2"], seed=2)

    sessions = json.loads(run.run_json.read_text())["sessions"]
    assert [(item["seed"], item["status"]) for item in sessions] == [(1, "interrupted"), (2, "done")]


def test_an_unreadable_run_json_is_kept_aside_and_does_not_stop_the_run(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "exp") as run:
        run.run_json.write_text("{half")
        run.write_run_json("running", argv=[], seed=None)

        assert json.loads(run.run_json.read_text())["status"] == "running"
        assert (run.path / "run.json.unreadable").read_text() == "{half"


def test_run_json_holds_no_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2-secret")

    with RunDir.open(tmp_path, "exp") as run:
        run.write_run_json("running", argv=[], seed=1)

        assert "hunter2-secret" not in run.run_json.read_text()


def test_a_folder_is_moved_while_it_is_held_and_a_new_one_is_held_instead(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "exp") as run:
        (run.path / "config.json").write_text("old")

        run.move_to(tmp_path / "aside")

        assert sorted(path.name for path in run.path.iterdir()) == [".lock"]
        assert (tmp_path / "aside" / "config.json").read_text() == "old"
        with pytest.raises(RunDirError, match=f"in use by process {os.getpid()}"):
            RunDir.open(tmp_path, "exp")
    RunDir.open(tmp_path, "exp").close()


def test_a_folder_that_cannot_be_moved_is_refused_and_stays(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "exp") as run:
        (run.path / "config.json").write_text("old")
        (tmp_path / "aside").write_text("in the way")

        with pytest.raises(RunDirError, match="could not be moved"):
            run.move_to(tmp_path / "aside")

        assert (run.path / "config.json").read_text() == "old"
        with pytest.raises(RunDirError, match="in use by process"):
            RunDir.open(tmp_path, "exp")


def test_who_opened_the_lock_before_the_folder_was_moved_does_not_lock_its_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.open(tmp_path, "exp")
    (run.path / "config.json").write_text("old")
    lock, opened = fcntl.flock, []

    def move_first(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        opened.append(fd)
        # Between another process's open and its lock, this one moves the folder and ends.
        run.move_to(tmp_path / "aside")
        run.close()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", move_first)
    other = RunDir.open(tmp_path, "exp")

    assert len(opened) == 1
    assert [path.name for path in other.path.iterdir()] == [".lock"]
    with pytest.raises(RunDirError, match="in use by process"):
        RunDir.open(tmp_path, "exp")
    RunDir.open(tmp_path, "aside").close()
    other.close()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout of one commit, which is the current directory; its a.py has changes."""
    root = write_files(tmp_path / "checkout", {"a.py": "x = 1\n"})
    monkeypatch.chdir(root)
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -q -m first"):
        subprocess.run(["git", *command.split()], check=True)
    (root / "a.py").write_text("x = 2\n")
    return root


def session(run: RunDir) -> dict[str, object]:
    """Record a session, whose record is returned."""
    run.write_run_json("running", argv=[], seed=1)
    run.write_run_json("done", argv=[], seed=1)
    record = json.loads(run.run_json.read_text())["sessions"][-1]
    assert isinstance(record, dict)
    return record


def test_changes_that_are_not_committed_are_kept_once_for_all_sessions_that_had_them(checkout: Path) -> None:
    train_dir, records = checkout / "train_dir", []
    for text in ("x = 2\n", "x = 2\n", "x = 3\n", "x = 1\n", "x = 3\n"):
        (checkout / "a.py").write_text(text)
        with RunDir.open(train_dir, "exp") as run:
            records.append(session(run))

    third = f"git_{records[2]['id']}.diff"
    assert [record["git_diff"] for record in records] == ["git.diff", "git.diff", third, None, third]
    assert [record["git_dirty"] for record in records] == [True, True, True, False, True]
    assert all(record["git_untracked"] == [] for record in records)
    assert b"+x = 2\n" in (train_dir / "exp" / "git.diff").read_bytes()
    assert b"+x = 3\n" in (train_dir / "exp" / third).read_bytes()
    assert len(list((train_dir / "exp").glob("*.diff"))) == 2


def test_a_kept_change_can_be_applied_to_its_commit(checkout: Path) -> None:
    with RunDir.open(checkout / "train_dir", "exp") as run:
        session(run)
    (checkout / "a.py").write_text("x = 1\n")

    subprocess.run(["git", "apply", run.path / "git.diff"], check=True)

    assert (checkout / "a.py").read_text() == "x = 2\n"


def test_outside_a_checkout_nothing_is_kept_and_nothing_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)

    with RunDir.open(tmp_path, "exp") as run:
        record = session(run)

    assert [record[f"git_{name}"] for name in ("commit", "dirty", "untracked", "diff")] == [None] * 4
    assert list(run.path.glob("*.diff")) == []
    assert caplog.text == ""


@pytest.mark.parametrize("call", ["rename", "mkdir"])
def test_a_signal_while_a_folder_is_moved_is_heard_when_the_new_one_is_held(
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
            run.move_to(tmp_path / "aside")
        idle.set()
        thread.join()
        assert interrupts.count == 1
        interrupts.count = 0  # so that the handlers of before come back

    assert sorted(path.name for path in run.path.iterdir()) == [".lock"]
    with pytest.raises(RunDirError, match="in use by process"):
        RunDir.open(tmp_path, "exp")
    RunDir.open(tmp_path, "aside").close()
    run.close()
