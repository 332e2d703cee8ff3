"""While others' code runs, what it prints goes to stderr, from Python and from C; afterwards stdout is as it was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# With its line end 16 characters, so that no line is cut in two where C's buffer is full.
FROM_C = "from C's puts()"
PREAMBLE = """
import ctypes, os, sys
from sfactory.process.signals import stdout_to_stderr
puts = ctypes.CDLL(None).puts
"""


def outputs_of(text: str, *, closed: bool = False) -> tuple[list[str], list[str]]:
    """Lines on stdout and on stderr of a process that runs ``text``; ``closed``: it starts without stdout."""
    # A pipe, and no PYTHONUNBUFFERED, which holds for C's stdout, too: only then does C keep anything back.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    shell = ["/bin/sh", "-c", f'exec "$0" "$@" {">&-" if closed else ""}']
    done = subprocess.run(
        [*shell, sys.executable, "-c", PREAMBLE + text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_what_is_printed_inside_goes_to_stderr_however_it_is_printed() -> None:
    out, err = outputs_of("""
with stdout_to_stderr():
    for _ in range(600):
        puts(b"from C's puts()")
    print("from Python")
    sys.__stdout__.write("from an older stream\\n")
    os.write(1, b"past all buffers\\n")
    os.system("echo from a child")
print("the result")
""")

    assert out == ["the result"]
    assert err.count(FROM_C) == 600
    assert {*err} == {FROM_C, "from Python", "from an older stream", "past all buffers", "from a child"}


def test_what_was_printed_before_stays_on_stdout() -> None:
    out, err = outputs_of("""
puts(b"before, from C")
sys.stdout.write("before, from Python\\n")
with stdout_to_stderr():
    pass
print("the result")
""")

    assert sorted(out[:2]) == ["before, from C", "before, from Python"]
    assert out[2:] == ["the result"]
    assert err == []


@pytest.mark.parametrize("deed", ["raise KeyError", "os.close(1)", "sys.stdout.close()", "sys.__stdout__.close()"])
def test_stdout_is_back_whatever_was_done_inside(deed: str) -> None:
    out, err = outputs_of(f"""
try:
    with stdout_to_stderr():
        puts(b"from C's puts()")
        {deed}
except KeyError:
    pass
os.write(1, b"the result")
""")

    assert out == ["the result"]
    assert [line for line in err if line != FROM_C] == []


def test_a_process_without_stdout_runs_all_the_same() -> None:
    out, err = outputs_of(
        """
assert sys.stdout is None
taken, _ = os.pipe()
assert taken == 1
with stdout_to_stderr():
    print("from Python")
    same = os.readlink("/proc/self/fd/1")
assert same == os.readlink("/proc/self/fd/1") != os.readlink("/proc/self/fd/2")
""",
        closed=True,
    )

    assert out == []
    assert err == ["from Python"]


def test_a_stdout_that_was_closed_on_the_way_is_closed_again() -> None:
    out, err = outputs_of("""
os.close(1)
with stdout_to_stderr():
    puts(b"from C's puts()")
assert not os.path.exists("/proc/self/fd/1")
os._exit(0)
""")

    assert out == []
    assert err == [FROM_C]
