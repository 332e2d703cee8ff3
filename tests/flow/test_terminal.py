"""A run on a terminal of 80 columns shows what is going on, and ends with a summary for people to read."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfactory.report.live_view import HEIGHT
from tests.support.terminal import COLUMNS, Terminal

FLAGS = ("--env=CartPole-v1", "--experiment=seen", "--num_workers=1", "--with_tensorboard=False")
SHOWN = ("run", "steps/s", "return", "loss", "updates", "actor", "learner", "slots", "queues", "memory", "warnings")


def start(terminal: Terminal, folder: Path, *flags: str) -> subprocess.Popen[bytes]:
    """A run on the terminal, which does not control it, as in a container."""
    command = [sys.executable, "-m", "sfactory", "train", *FLAGS, *flags]
    environment = {**os.environ, "TERM": "xterm"}
    return subprocess.Popen(command, cwd=folder, stdout=terminal.fd, stderr=terminal.fd, env=environment)


def pictures(terminal: Terminal, run: subprocess.Popen[bytes]) -> Iterator[list[str]]:
    """The rows of the terminal, several times a second, while the view is there and the run goes on."""
    end = time.monotonic() + 240.0
    while run.poll() is None and time.monotonic() < end:
        rows = terminal.rows(0.2)
        if terminal.region() is not None:
            yield rows


def test_a_run_on_a_terminal_is_seen_live_and_ends_with_a_readable_summary(tmp_path: Path) -> None:
    terminal = Terminal()
    run = start(terminal, tmp_path, "--train_for_seconds=3")

    *_, last = pictures(terminal, run)

    rows = terminal.scrolled_off + terminal.rows(0.2)
    assert run.wait(10.0) == 0
    assert {row.split()[0] for row in last[-HEIGHT:] if row.strip("─ ")} >= {*SHOWN}
    assert "seen" in last[1 - HEIGHT]
    assert "%" in "".join(last[-HEIGHT:])
    assert terminal.region() is None
    text = [row for row in rows if row]
    result = next(index for index, row in enumerate(text) if row.startswith("RESULT done"))
    wide = [row for row in text if len(row) >= COLUMNS]
    assert wide == [text[result]]  # the command that resumes is in one piece
    assert not any(row.startswith("{") for row in text)
    assert text[result + 1].split() == ["status", "done"]
    assert any(row.split()[:2] == ["env", "steps"] for row in text[result:])
    assert (tmp_path / "train_dir" / "seen" / "summary.json").is_file()
    terminal.close()


@pytest.mark.long
def test_the_terminal_is_given_back_after_a_run_was_killed(tmp_path: Path) -> None:
    terminal = Terminal()
    run = start(terminal, tmp_path)
    next(pictures(terminal, run))

    run.kill()

    run.wait(10.0)
    end = time.monotonic() + 30.0
    while terminal.region() is not None and time.monotonic() < end:
        terminal.rows(0.2)
    assert terminal.region() is None
    terminal.close()
