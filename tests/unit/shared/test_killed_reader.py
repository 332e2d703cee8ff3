"""Shows why a queue has only one reader in its lifetime: how a writer fares after its reader was killed.

NOTE [Death and queues] in sfactory/shared/channel.py rests on this. The outcome depends on the condition variable of
the C library, its version and chance, so the test accepts a writer that finishes or hangs, and records which it was.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable

import pytest

MESSAGES = 2000
# A reader is killed while it waits. Then messages are written without a reader or to another reader. A writer that
# hangs in C can be interrupted only by the kernel's alarm.
PROGRAM = f"""
import os, signal, sys, time
from queue import Empty, Full
from faster_fifo import Queue

queue = Queue(1_000_000)

def forked(act):
    child = os.fork()
    if not child:
        signal.alarm(10)
        act()
        os._exit(0)
    return child

def wait_forever():
    queue.get_many(timeout=1000)

def read_all():
    seen = 0
    while seen < {MESSAGES}:
        try:
            seen += len(queue.get_many(timeout=0.2))
        except Empty:
            pass

def write_all():
    sent = 0
    while sent < {MESSAGES}:
        try:
            queue.put(b"message", block=False)
            sent += 1
        except Full:
            time.sleep(0.001)

reader = forked(wait_forever)
time.sleep(0.5)  # it waits in C by now
os.kill(reader, signal.SIGKILL)
os.waitpid(reader, 0)
second = forked(read_all) if sys.argv[1] == "replaced" else None
if second:
    time.sleep(0.2)
writer = forked(write_all)
_, status = os.waitpid(writer, 0)
if second:
    os.kill(second, signal.SIGKILL)
    os.waitpid(second, 0)
if os.WIFEXITED(status):
    print("written" if os.WEXITSTATUS(status) == 0 else "failed")
else:
    print("hung" if os.WTERMSIG(status) == signal.SIGALRM else "killed")
"""


def outcome(second_reader: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, second_reader], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.mark.long
def test_writer_may_hang_after_a_killed_reader_is_replaced(record_property: Callable[[str, object], None]) -> None:
    found = outcome("replaced")

    record_property(f"writer after a replaced reader, {' '.join(platform.libc_ver())}", found)
    assert found in ("written", "hung")


def test_writer_continues_after_its_only_reader_was_killed() -> None:
    assert outcome("not replaced") == "written"
