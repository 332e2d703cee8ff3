"""launch.json keeps the state of each run, survives damage, and belongs to one launcher at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfactory.errors import RunDirError
from sfactory.launch.jobs import NAME, Entry, LaunchState


def test_entries_are_saved_and_loaded(tmp_path: Path) -> None:
    with LaunchState.opened(tmp_path / "new") as launch_state:
        assert launch_state.entry("a") == Entry()
        launch_state.started("a")
        launch_state.ended("a", "failed", 70, "the learner died")
        launch_state.started("a")
        launch_state.ended("a", "done", 0)
        launch_state.ended("b", "failed", None, "no such program")

    with LaunchState.opened(tmp_path / "new") as launch_state:
        a, b = launch_state.entry("a"), launch_state.entry("b")
        assert (a.status, a.starts, a.exit_code, a.cause) == ("done", 2, 0, "")
        assert (b.status, b.starts, b.exit_code, b.cause) == ("failed", 0, None, "no such program")
        assert a.started <= a.ended


def test_run_of_a_dead_launcher_was_interrupted(tmp_path: Path) -> None:
    with LaunchState.opened(tmp_path) as launch_state:
        launch_state.started("a")
        assert launch_state.entry("a").status == "running"

    with LaunchState.opened(tmp_path) as launch_state:
        assert launch_state.entry("a").status == "interrupted"


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"format_version": 2, "runs": {}}',
        b'{"format_version": 1, "runs": []}',
        b'{"format_version": 1, "runs": {"a": 3}}',
        b'{"format_version": 1, "runs": {"a": {"status": "lost"}}}',
        b'{"format_version": 1, "runs": {"a": {"colour": "red"}}}',
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


def test_directory_belongs_to_one_launcher_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(RunDirError, match="in use by another launcher")
    with LaunchState.opened(tmp_path), refused, LaunchState.opened(tmp_path):
        pass

    with LaunchState.opened(tmp_path):
        pass


def test_file_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LaunchState.opened(tmp_path) as launch_state:
        (tmp_path / NAME).mkdir()
        launch_state.started("a")
        launch_state.ended("a", "done", 0)
        assert launch_state.entry("a").status == "done"

    assert caplog.text.count("cannot be written") == 1
