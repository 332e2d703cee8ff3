"""The ledger keeps what was done with each run, survives damage, and belongs to one launcher at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfactory.errors import RunDirError
from sfactory.launch.jobs import NAME, Entry, Ledger


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    with Ledger.opened(tmp_path / "new") as ledger:
        assert ledger.entry("a") == Entry()
        ledger.started("a")
        ledger.ended("a", "failed", 70, "the learner died")
        ledger.started("a")
        ledger.ended("a", "done", 0)
        ledger.ended("b", "failed", None, "no such program")

    with Ledger.opened(tmp_path / "new") as ledger:
        a, b = ledger.entry("a"), ledger.entry("b")
        assert (a.status, a.starts, a.exit_code, a.cause) == ("done", 2, 0, "")
        assert (b.status, b.starts, b.exit_code, b.cause) == ("failed", 0, None, "no such program")
        assert a.started <= a.ended


def test_a_run_that_a_dead_launcher_was_running_was_interrupted(tmp_path: Path) -> None:
    with Ledger.opened(tmp_path) as ledger:
        ledger.started("a")
        assert ledger.entry("a").status == "running"

    with Ledger.opened(tmp_path) as ledger:
        assert ledger.entry("a").status == "interrupted"


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
def test_a_damaged_ledger_is_kept_aside_and_begun_anew(
    tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(damaged)

    with Ledger.opened(tmp_path) as ledger:
        assert ledger.entry("a") == Entry()
        ledger.started("a")

    assert "cannot be read" in caplog.text
    assert (tmp_path / f"{NAME}.unreadable").read_bytes() == damaged
    assert json.loads((tmp_path / NAME).read_text())["runs"]["a"]["starts"] == 1


def test_a_folder_belongs_to_one_launcher_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(RunDirError, match="in use by another launcher")
    with Ledger.opened(tmp_path), refused, Ledger.opened(tmp_path):
        pass

    with Ledger.opened(tmp_path):
        pass


def test_a_ledger_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Ledger.opened(tmp_path) as ledger:
        (tmp_path / NAME).mkdir()
        ledger.started("a")
        ledger.ended("a", "done", 0)
        assert ledger.entry("a").status == "done"

    assert caplog.text.count("cannot be written") == 1
