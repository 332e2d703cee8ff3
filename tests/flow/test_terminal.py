"""A run on a terminal of 80 columns shows what is going on, and ends with a summary for people to read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.proc import MARK, PROC, stat_of
from sfactory.process.stack_dump import is_stopped
from sfactory.report.live_view import HEIGHT
from tests.support.processes import eventually
from tests.support.terminal import COLUMNS, Terminal
from tests.support.warm_process import WarmRun, environment, warm_process

FLAGS = ("--env=CartPole-v1", "--experiment=seen", "--num_workers=1", "--with_tensorboard=False")
SHOWN = ("run", "steps/s", "return", "loss", "updates", "actor", "learner", "slots", "queues", "memory", "warnings")


def start(terminal: Terminal, folder: Path, *flags: str) -> WarmRun:
    """A run on the terminal, which does not control it, as in a container."""
    screen, env = folder / "screen", {**environment(), MARK: uuid.uuid4().hex, "TERM": "xterm"}
    screen.symlink_to(os.ttyname(terminal.fd))
    argv = [*FLAGS, *flags]
    return warm_process().start("sfactory.train", argv, cwd=folder, env=env, stdout=screen, stderr=screen)


def pictures(terminal: Terminal, run: WarmRun) -> Iterator[list[str]]:
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


def run_of(session: int) -> list[int]:
    """The processes of the run that was started in the session: all but the watcher and Python's own."""
    found = []
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            stat = stat_of(int(folder.name))
            if stat.session == session and stat.name.startswith("sf-"):
                found.append(int(folder.name))
    return found


@pytest.mark.long
def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(tmp_path: Path) -> None:
    terminal = Terminal()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=terminal.fd,
        stdout=terminal.fd,
        stderr=terminal.fd,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )

    def until(what: Callable[[list[str]], bool]) -> None:
        assert eventually(lambda: what(terminal.rows(0.2)), 120.0), terminal.rows()

    terminal.type(shlex.join([sys.executable, "-m", "sfactory", "train", *FLAGS]) + "\n")
    for _ in range(2):
        until(lambda rows: terminal.region() is not None and any("env steps" in row for row in rows))

        terminal.type("\x1a")
        until(lambda rows: terminal.region() is None)
        assert eventually(lambda: all(map(is_stopped, run_of(shell.pid))), 10.0)
        assert len(run_of(shell.pid)) >= 3
        terminal.type("fg\n")
    until(lambda rows: terminal.region() is not None)  # before, the shell would take the Ctrl-C
    terminal.type("\x03")
    until(lambda rows: any("RESULT interrupted" in row for row in rows))
    terminal.type("exit\n")
    shell.wait(30.0)
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
