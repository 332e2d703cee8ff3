"""Where a file is expected, anything else is an error at once: nothing waits for a FIFO or follows endless brackets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.config_file import read_config_file
from sfactory.config.saved_config import read_config
from sfactory.errors import SFactoryError
from sfactory.experiment.run_dir import lock_file
from sfactory.experiment.summary import Summary
from sfactory.launch.jobs import Job, LaunchState
from sfactory.launch.run_description import description_of
from sfactory.launch.run_processes import Gpus, LocalRuns, last_line
from sfactory.pbt.event_log import Event, Kind, append_event, read_events
from sfactory.pbt.state import load_state
from sfactory.process.signals import Interrupts
from sfactory.report.console import Console
from sfactory.report.writers import MetricsWriter

DEEP = b'{"a": ' * 10_000
NOT_REGULAR = "is not a regular file"


def checkpoints(folder: Path) -> CheckpointDir:
    directory = CheckpointDir(folder, keep=2)
    directory.save({"a": 1}, train_step=1, env_steps=1)
    return directory


def fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def folder(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.mkdir()
    return path


def device(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    return path


def deep(path: Path) -> Path:
    path.write_bytes(DEEP)
    return path


def error_of(read: Callable[[], object]) -> str:
    with pytest.raises((SFactoryError, OSError)) as caught:
        read()
    return str(caught.value)


@pytest.mark.parametrize("make", [fifo, folder, device, deep])
def test_files_that_are_read_must_be_regular_and_shallow(make: Callable[[Path], Path], tmp_path: Path) -> None:
    said = "brackets deep" if make is deep else NOT_REGULAR
    (tmp_path / "checkpoint_p0").mkdir()
    directory = checkpoints(tmp_path / "checkpoint_p0")
    make(tmp_path / "checkpoint_p0" / "checkpoint_000000001_1.pth.json")
    for name in ("config.json", "population.json", "summary.json"):
        make(tmp_path / name)

    assert said in error_of(lambda: read_config(tmp_path))
    assert said in error_of(lambda: load_state(tmp_path))
    assert said in error_of(directory.load)
    assert Summary.read(tmp_path / "summary.json") is None
    for name in ("a.json", "a.toml", "a.yaml"):
        (problem,) = read_config_file(str(make(tmp_path / name))).problems
        assert said in problem or (make is deep and "is not valid" in problem)
    assert "cannot be read" in error_of(lambda: description_of(str(tmp_path / "a.toml"))) or make is deep


@pytest.mark.parametrize("make", [fifo, folder, device])
def test_files_that_are_written_must_be_regular(
    make: Callable[[Path], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    assert NOT_REGULAR in error_of(lambda: lock_file(make(tmp_path / "a"), "")) or make is not fifo
    make(tmp_path / "population.jsonl")
    assert error_of(lambda: append_event(tmp_path, 1, Event(Kind.KEEP, 0, 1, {})))
    assert NOT_REGULAR in error_of(lambda: read_events(tmp_path)) or make is folder
    MetricsWriter(make(tmp_path / "metrics.jsonl")).write(1, {"x": 1.0})
    assert "metrics.jsonl: rows are lost until this is fixed" in caplog.text
    Console(None, None, log_path=make(tmp_path / "sf_log.txt")).close()
    assert "sf_log.txt cannot be written" in capsys.readouterr().err
    job = Job("run", tmp_path, (), {})
    make(job.log_path)
    with LaunchState.opened(tmp_path) as launch_state, Interrupts() as interrupts:
        LocalRuns([job], launch_state, interrupts, 4, Gpus([None], 4), pause_s=0).run()
    assert launch_state.entry("run").status == "failed"
    assert "cannot be read" in last_line(job.log_path, 0)
