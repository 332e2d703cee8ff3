"""launch.json keeps the state of each run, and GPUs are assigned evenly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

from sfactory import clock
from sfactory.clock import now
from sfactory.errors import ConfigError, RunDirError
from sfactory.launch import run_processes
from sfactory.launch.jobs import NAME, Entry, Job, LaunchState
from sfactory.launch.run_processes import Gpus, LocalRuns, devices, last_line
from sfactory.process.signals import Interrupts
from tests.support.processes import eventually


def test_entries_are_saved_and_loaded_by_one_launcher_at_a_time(tmp_path: Path) -> None:
    with LaunchState.opened(tmp_path / "new") as launch_state:
        assert launch_state.entry("a") == Entry()
        launch_state.started("a")
        launch_state.ended("a", "failed", 70, "the learner died")
        launch_state.started("a")
        launch_state.ended("a", "done", 0)
        launch_state.ended("b", "failed", None, "no such program")
        launch_state.started("c")
        with pytest.raises(RunDirError, match="in use by process"), LaunchState.opened(tmp_path / "new"):
            pass

    with LaunchState.opened(tmp_path / "new") as launch_state:
        a, b = launch_state.entry("a"), launch_state.entry("b")
        assert (a.status, a.starts, a.exit_code, a.cause) == ("done", 2, 0, "")
        assert (b.status, b.starts, b.exit_code, b.cause) == ("failed", 0, None, "no such program")
        assert a.started <= a.ended
        assert launch_state.entry("c").status == "interrupted"  # its launcher is dead


RUN = b'{"format_version": 1, "runs": {"a": %s}}'


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"", b"{", b"\xff\xfe", b'{"format_version": 2, "runs": {}}'),
        *(RUN % value for value in (b"3", b'{"status": "lost"}', b'{"colour": "red"}')),
    ],
)
def test_damaged_file_is_renamed_and_replaced(tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_bytes(damaged)

    with LaunchState.opened(tmp_path) as launch_state:
        assert launch_state.entry("a") == Entry()
        launch_state.started("a")

    assert "cannot be read" in caplog.text
    assert (tmp_path / f"{NAME}.unreadable").read_bytes() == damaged
    assert json.loads((tmp_path / NAME).read_text())["runs"]["a"]["starts"] == 1


def test_file_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LaunchState.opened(tmp_path) as launch_state:
        (tmp_path / NAME).mkdir()
        launch_state.started("a")
        launch_state.ended("a", "done", 0)
        assert launch_state.entry("a").status == "done"

    assert caplog.text.count("cannot be written") == 1


def test_run_gets_the_gpu_with_the_fewest_runs() -> None:
    gpus = Gpus(["0", "1"], per_gpu=2)

    assert [(gpus.full, gpus.take()) for _ in range(4)] == [(False, "0"), (False, "1")] * 2
    assert gpus.full
    gpus.give_back("1")
    assert [gpus.full, gpus.take(), gpus.full] == [False, "1", True]


def test_launcher_whose_run_cannot_be_started_ends_at_once(tmp_path: Path) -> None:
    jobs = [Job("a", tmp_path, (), {}), Job("b", tmp_path, ("\0",), {})]
    jobs[0].log_path.mkdir()  # its output cannot be written
    start = now()

    with LaunchState.opened(tmp_path) as launch_state, Interrupts() as interrupts:
        LocalRuns(jobs, launch_state, interrupts, 4, Gpus([None], 4), pause_s=100).run()

    assert [launch_state.entry(name).status for name in ("a", "b")] == ["failed", "failed"]
    assert now() - start < 10


class SlowToSave(Job):
    """A process that saves after a signal until there is the file ``saved`` in its folder."""

    @property
    def saved(self) -> Path:
        return self.folder / "saved"

    def has_said(self, word: str) -> bool:
        return self.log_path.exists() and word in self.log_path.read_text()

    @property
    def command(self) -> list[str]:
        text = f"""
import os, signal, sys, time
def save(*_):
    print("saving", flush=True)
    while not os.path.exists({str(self.saved)!r}):
        time.sleep(0.01)
    sys.exit(143)
signal.signal(15, save)
print("ready", flush=True)
signal.pause()
"""
        return [sys.executable, "-c", text]


def test_run_that_takes_long_to_save_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, interrupts, moment = SlowToSave("a", tmp_path, (), {}), Interrupts(), 0.0
    interrupts.raising = False
    monkeypatch.setattr(clock, "now", lambda: moment)

    def passing(fds: list[Any], within_s: float) -> list[Any]:
        """Time passes where the launcher waits: hardly any, but 100 s while the run saves."""
        nonlocal moment
        moment += 0.01
        if not interrupts.count and job.has_said("ready"):
            interrupts._handle(signal.SIGTERM, None)
        if job.has_said("saving") and not job.saved.exists():
            moment += 100.0
            job.saved.touch()
        return connection.wait(fds, min(within_s, 0.05))

    monkeypatch.setattr(run_processes, "wait", passing)
    with LaunchState.opened(tmp_path) as launch_state:
        LocalRuns([job], launch_state, interrupts, 1, Gpus([None], 1), pause_s=0).run()
    interrupts.restore()

    assert job.saved.exists()
    assert (launch_state.entry("a").status, launch_state.entry("a").exit_code) == ("interrupted", 143)


@pytest.mark.parametrize("held_up", [False, True])
def test_two_signals_that_come_together_end_runs_at_once(
    held_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_processes, "_CLEAN_UP_S", 0.2)
    jobs, interrupts = [SlowToSave(name, tmp_path, (), {}) for name in ("a", "b", "c")], Interrupts()

    def late(_process: object, timeout: float) -> int:
        raise subprocess.TimeoutExpired("a", timeout)

    def until_both_came(fds: list[Any], within_s: float) -> list[Any]:
        if not interrupts.count:
            assert eventually(lambda: all(job.has_said("ready") for job in jobs[:2]), 60)
            if held_up:  # by the kernel, after it was killed
                monkeypatch.setattr(subprocess.Popen, "wait", late)
            interrupts.signum, interrupts.count = signal.SIGTERM, 2
            return []
        return connection.wait(fds, within_s)

    monkeypatch.setattr(run_processes, "wait", until_both_came)

    with LaunchState.opened(tmp_path) as launch_state:
        LocalRuns(jobs, launch_state, interrupts, 2, Gpus([None], 2), pause_s=0).run()

    interrupts.restore()
    ends = [(launch_state.entry(name).status, launch_state.entry(name).exit_code) for name in ("a", "b", "c")]
    assert ends == [("interrupted", -signal.SIGKILL), ("interrupted", -signal.SIGKILL), ("waiting", None)]


def test_run_that_a_signal_ends_before_it_handles_any_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, interrupts = SlowToSave("a", tmp_path, (), {}), Interrupts()

    def at_once(fds: list[Any], within_s: float) -> list[Any]:
        if not interrupts.count:
            interrupts.signum, interrupts.count = signal.SIGINT, 1
            return []
        return connection.wait(fds, within_s)

    monkeypatch.setattr(run_processes, "wait", at_once)

    with LaunchState.opened(tmp_path) as launch_state:
        LocalRuns([job], launch_state, interrupts, 1, Gpus([None], 1), pause_s=0).run()

    interrupts.restore()
    assert launch_state.entry("a").status == "interrupted"


def test_no_run_is_started_after_a_signal(tmp_path: Path) -> None:
    interrupts = Interrupts()
    interrupts.raising = False
    interrupts._handle(signal.SIGINT, None)

    with LaunchState.opened(tmp_path) as launch_state:
        LocalRuns([SlowToSave("a", tmp_path, (), {})], launch_state, interrupts, 1, Gpus([None], 1), pause_s=0).run()

    interrupts.restore()
    assert launch_state.entry("a") == Entry()


def test_devices_are_the_visible_ones() -> None:
    assert devices(2, None) == ["0", "1"]
    assert devices(2, "3, 5,7") == ["3", "5"]
    for visible in ("", "0,"):
        with pytest.raises(ConfigError, match="--num_gpus=2: CUDA_VISIBLE_DEVICES="):
            devices(2, visible)


def test_the_folder_of_a_training_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(RunDirError, match="is the folder of a training run"), LaunchState.opened(tmp_path):
        pass

    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            "error: --gamma=9: too much\nerror: more\nRESULT failed env_steps=0 return=none\n",
            "error: --gamma=9: too much",
        ),
        (
            "error: it fell\nRESULT failed env_steps=0 cause: it fell resume: x\n{}\n",
            "RESULT failed env_steps=0 cause: it",
        ),
        ("Killed\n", "Killed"),
        ("", ""),
    ],
)
def test_the_cause_of_a_failed_run_is_its_result_or_the_error_of_a_refused_start(
    output: str, cause: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(f"error: of an earlier start\n{output}")

    assert last_line(tmp_path / "log", len("error: of an earlier start\n")).startswith(cause)
