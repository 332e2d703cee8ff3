"""Writing to stdout and stderr ends in time, read or not; a reader that has gone is no error."""

from __future__ import annotations

import contextlib
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from sfactory.errors import ExitCode

MANY = 300_000  # bytes, more than a pipe, a terminal or a socket takes
# Prints too much, says so on stdin's socket, waits for an answer, and prints the last line.
LOUD = f"""
import os, sys
from sfactory.system import streams
streams.WRITE_S = 0.2
streams.open_standard_streams()
print("x" * {MANY}, file=sys.{{name}}, flush=True)
for _ in range(100):
    print("y" * 1000, file=sys.{{name}}, flush=True)
os.write(0, b"!")
os.read(0, 1)
print("\\nthe last line", file=sys.{{name}}, flush=True)
"""
# A command that prints a result, and so do train and all others, on Python's stdout.
COMMAND = """
import sys
from sfactory.process.command import Command
with Command("sf-test") as command:
    command.print_result(lambda: "the result")
sys.exit(command.exit_code)
"""
# A program without stderr that trains; where torch would be imported, it says what descriptor 2 leads to.
TRAINS = """
import os, sys, sfactory
from sfactory import api
def importing_torch(doing):
    print(doing, file=sys.stderr, flush=True)
    os.write(1, os.readlink("/proc/self/fd/2").encode())
    sys.exit(5)
api.importing_torch = importing_torch
os.close(2)
sys.stderr = sys.__stderr__ = None
sfactory.run(["--env=CartPole-v1"])
"""


def socket_pair() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def read_all(fd: int) -> bytes:
    """What can be read at once."""
    os.set_blocking(fd, False)
    taken = b""
    with contextlib.suppress(BlockingIOError):
        while more := os.read(fd, MANY):
            taken += more
    return taken


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("pair", [os.pipe, pty.openpty, socket_pair])
def test_output_that_is_not_read_holds_up_no_process(pair: Callable[[], tuple[int, int]], name: str) -> None:
    reader, writer = pair()
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    stdout, stderr = [writer if name == one else None for one in ("stdout", "stderr")]
    process = subprocess.Popen(
        [sys.executable, "-c", LOUD.format(name=name)], stdin=theirs.fileno(), stdout=stdout, stderr=stderr
    )
    try:
        assert ours.recv(1) == b"!"
        assert b"x" * 1000 in read_all(reader)
        ours.send(b"!")
        assert process.wait(60) == 0
        assert read_all(reader).split() == [b"the", b"last", b"line"]
    finally:
        process.kill()
        process.wait()
        for fd in (reader, writer):
            os.close(fd)
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    ("stdout", "code", "words"),
    [("closed", ExitCode.DONE, ""), ("/dev/full", ExitCode.CANNOT_SAVE, "cannot be written to stdout: No space left")],
)
def test_a_stdout_that_is_closed_fails_no_command_and_a_full_disk_does(stdout: str, code: ExitCode, words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    if stdout != "closed":
        os.close(writer)
        writer = os.open(stdout, os.O_WRONLY)

    command = [sys.executable, "-c", COMMAND]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    os.close(writer)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == bool(words)


def test_a_run_that_a_program_without_stderr_starts_prints_its_first_line_nowhere_else() -> None:
    done = subprocess.run([sys.executable, "-c", TRAINS], stdout=subprocess.PIPE, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (5, b"/dev/null")
