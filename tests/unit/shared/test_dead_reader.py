"""Why a ring has one reader in its life: what becomes of a writer after a reader was killed while it waited.

NOTE [Death and queues] in sfactory/shared/channel.py rests on this. It is the C library's condition variable, so that
it depends on its version and on chance: the test passes with either outcome, says which it was, and knows no third.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable

import pytest

MESSAGES = 2000
# A reader is killed while it waits. Then messages are written, to nobody or to another reader. A writer that hangs in
# C cannot be woken by Python, but by the kernel's alarm.
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

def wait_for_ever():
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

reader = forked(wait_for_ever)
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
def test_a_writer_hangs_or_not_once_a_killed_reader_is_replaced_on_its_ring(
    record_property: Callable[[str, object], None],
) -> None:
    found = outcome("replaced")

    record_property(f"writer after a replaced reader, {' '.join(platform.libc_ver())}", found)
    assert found in ("written", "hung")


def test_a_writer_whose_only_reader_was_killed_goes_on_until_the_ring_is_full() -> None:
    assert outcome("not replaced") == "written"
