"""One run at a time owns an experiment's folder, and the folder tells what was run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sfactory import __version__
from sfactory.errors import RunDirError
from sfactory.run.rundir import RunDir

REPO = Path(__file__).resolve().parents[2]

HOLD = """
import sys
from sfactory.run.rundir import RunDir
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
