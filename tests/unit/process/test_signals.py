"""Each signal that a user means is counted once, and foreign prints go to stderr while stdout stays as it was."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sfactory.errors import Passing
from sfactory.launch.tied_process import tied_command
from sfactory.process.signals import (
    ECHO_S,
    FOR_MAIN,
    Interrupted,
    Interrupts,
    TimeIsUp,
    bounded,
    handlers_are_heard,
    leave_signals_to_main,
    signals_held_back,
)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    interrupts = Interrupts()
    with interrupts:
        interrupts.raising = False
        yield interrupts
    interrupts.restore()


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows: no time passes between signals, however long a busy machine holds this process up."""
    shown = [1000.0]
    monkeypatch.setattr("sfactory.process.signals.now", lambda: shown[0])
    return shown


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_signals_are_counted_although_an_env_has_set_handlers_of_its_own(
    interrupts: Interrupts, caplog: pytest.LogCaptureFixture
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it would not end the run

    interrupts.take_back()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    interrupts.take_back()
    send(signal.SIGTERM)

    assert interrupts.count == 1
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "the env, or a library, had set a handler of its own for SIGTERM"
    ]


def test_another_thread_sets_no_handlers() -> None:
    handlers = {number: signal.getsignal(number) for number in FOR_MAIN}

    def work() -> None:
        interrupts = Interrupts()
        with interrupts, signals_held_back(), bounded(0.01):
            time.sleep(0.05)
            assert {number: signal.getsignal(number) for number in FOR_MAIN} == handlers
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        interrupts.restore()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(10)
    assert {number: signal.getsignal(number) for number in FOR_MAIN} == handlers


def test_ctrl_c_passes_code_that_handles_all_that_an_env_raises() -> None:
    faults: list[BaseException] = []

    def step() -> None:
        with handlers_are_heard():
            try:
                signal.raise_signal(signal.SIGINT)
            except Passing:
                raise
            except BaseException as error:
                faults.append(error)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            step()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)

    assert faults == []


def test_a_handler_that_is_heard_may_set_another_one() -> None:
    def once(signum: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    before = signal.signal(signal.SIGINT, once)
    try:
        with handlers_are_heard():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_block_that_ends_as_its_time_is_up_leaves_no_timer() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    for microsecond in range(60):
        end = time.perf_counter() + 1970e-6 + microsecond * 1e-6
        with contextlib.suppress(TimeIsUp), bounded(0.002):
            while time.perf_counter() < end:
                pass

        assert signal.getitimer(signal.ITIMER_REAL)[1] == 0.0
        assert signal.getsignal(signal.SIGALRM) == handler


def test_what_is_restored_twice_closes_no_file_of_others() -> None:
    interrupts = Interrupts()
    interrupts.restore()
    others = os.pipe()

    interrupts.restore()

    for fd in others:
        os.close(fd)  # raises OSError if it is closed


@pytest.mark.usefixtures("moment")
@pytest.mark.parametrize("echo", [signal.SIGTERM, signal.SIGHUP])
def test_an_echo_of_a_signal_is_ignored(interrupts: Interrupts, echo: signal.Signals) -> None:
    interrupts.raising_again = True

    send(signal.SIGTERM)
    send(echo)

    assert (interrupts.count, interrupts.exit_code) == (1, 143)


def test_an_echo_inside_the_handler_is_ignored(interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts.raising_again = True
    echoes = [signal.SIGTERM]

    def now_with_an_echo() -> float:
        if echoes:
            send(echoes.pop())
        return 1000.0

    monkeypatch.setattr("sfactory.process.signals.now", now_with_an_echo)

    send(signal.SIGTERM)

    assert (interrupts.count, echoes) == (1, [])


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_later_signal_is_a_second_signal(interrupts: Interrupts, second: signal.Signals, moment: list[float]) -> None:
    interrupts.raising_again = True
    send(signal.SIGINT)
    moment[0] += ECHO_S

    with pytest.raises(Interrupted):
        send(second)

    assert (interrupts.count, interrupts.exit_code) == (2, 130)


@pytest.mark.usefixtures("moment")
def test_a_signal_while_torch_is_imported_is_answered_at_once_and_handled_afterwards(
    interrupts: Interrupts, capfd: pytest.CaptureFixture[str]
) -> None:
    with signals_held_back("torch is imported"):
        for _ in range(2):
            send(signal.SIGTERM)
        assert capfd.readouterr().err == "SIGTERM is handled when torch is imported\n"
        assert interrupts.count == 0

    assert (interrupts.count, interrupts.signum) == (1, signal.SIGTERM)


def test_a_read_in_c_goes_on_after_a_signal_also_once_a_block_inside_has_ended(interrupts: Interrupts) -> None:
    libc, (there, here), main = ctypes.CDLL(None), os.pipe(), threading.get_ident()
    threads = [
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGTERM)),
        threading.Timer(0.2, os.write, (here, b"!")),
    ]

    with signals_held_back("torch is imported"):
        with signals_held_back():
            pass
        for thread in threads:
            thread.start()
        count = libc.read(there, ctypes.create_string_buffer(1), 1)

    for thread in threads:
        thread.join()
    os.close(there)
    os.close(here)
    assert (count, interrupts.count) == (1, 1)


def ignored_by(*command: str) -> set[int]:
    """Signals for main that a command ignores which prints /proc/self/status."""
    status = subprocess.check_output([*command, "/proc/self/status"], text=True, restore_signals=False)
    mask = int(next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1], 16)
    return {signum for signum in FOR_MAIN if mask >> (signum - 1) & 1}


def test_a_signal_that_is_ignored_at_the_start_stays_ignored_by_main_and_all_that_it_starts() -> None:
    ignored = {signal.SIGHUP, signal.SIGINT}
    for signum in ignored:
        signal.signal(signum, signal.SIG_IGN)

    with Interrupts() as interrupts:
        with signals_held_back():
            server = ignored_by("cat")
        main = ignored_by("cat")
        for signum in ignored:
            send(signum)
        leave_signals_to_main()  # as in a child of the server
        child = ignored_by("cat")
    interrupts.restore()

    assert interrupts.count == 0
    assert (server, main, child) == (ignored, ignored, ignored)


def test_a_run_of_a_launcher_that_ignores_sigterm_ends_with_it_all_the_same() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    assert ignored_by("cat") == {signal.SIGTERM}
    assert ignored_by(*tied_command(["/bin/cat"])) == set()


def test_a_failed_program_has_its_exit_code_although_sigchld_is_ignored_at_the_start() -> None:
    text = """
import signal, subprocess, sys
from sfactory.process.command import Command
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with Command("sf-test"):
    sys.exit(subprocess.run(["sh", "-c", "exit 5"]).returncode)
"""

    assert subprocess.run([sys.executable, "-c", text], timeout=60, check=False).returncode == 5


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGUSR2, 140), (signal.SIGXCPU, 152)])
def test_the_signals_of_batch_systems_save_and_end_a_run_and_more_cpu_time_is_no_second_one(
    interrupts: Interrupts, signum: signal.Signals, code: int, moment: list[float]
) -> None:
    interrupts.raising_again = True

    send(signum)
    moment[0] += ECHO_S
    send(signal.SIGXCPU)

    assert (interrupts.count, interrupts.exit_code) == (1, code)


def use_up_cpu_time() -> None:
    leave_signals_to_main()
    signal.raise_signal(signal.SIGUSR2)
    signal.raise_signal(signal.SIGXCPU)


def test_main_learns_of_cpu_time_that_a_child_has_used_up(interrupts: Interrupts) -> None:
    child = multiprocessing.get_context("fork").Process(target=use_up_cpu_time)
    child.start()
    child.join(60)

    assert child.exitcode == 0
    assert (interrupts.count, interrupts.exit_code) == (1, 152)


def test_a_forked_process_ends_by_sigterm_and_leaves_ctrl_c_to_main(interrupts: Interrupts) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, b"!")
            time.sleep(60)
        finally:
            os._exit(0)
    os.read(reader, 1)

    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert interrupts.count == 0
    os.close(reader)
    os.close(writer)


# With its line end 16 characters, so that no line is cut in two where C's buffer is full.
FROM_C = "from C's puts()"
PREAMBLE = """
import ctypes, os, sys
from sfactory.process.signals import stdout_to_stderr
puts = ctypes.CDLL(None).puts
"""


def outputs_of(text: str, redirection: str = "") -> tuple[list[str], list[str]]:
    """Lines on stdout and on stderr of a process that runs ``text``."""
    # A pipe, and no PYTHONUNBUFFERED, which holds for C's stdout, too: only then does C keep anything back.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, "-c", PREAMBLE + text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_all_prints_inside_go_to_stderr_and_those_before_stay_on_stdout() -> None:
    out, err = outputs_of("""
puts(b"before, from C")
sys.stdout.write("before, from Python\\n")
with stdout_to_stderr():
    for _ in range(600):
        puts(b"from C's puts()")
    print("from Python")
    sys.__stdout__.write("from an older stream\\n")
    os.write(1, b"past all buffers\\n")
    os.system("echo from a child")
print("the result")
""")

    assert sorted(out[:2]) == ["before, from C", "before, from Python"]
    assert out[2:] == ["the result"]
    assert err.count(FROM_C) == 600
    assert {*err} == {FROM_C, "from Python", "from an older stream", "past all buffers", "from a child"}


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
    assert {*err} <= {FROM_C}


def test_a_process_without_stdout_runs_all_the_same() -> None:
    text = """
assert sys.stdout is None
taken, _ = os.pipe()
assert taken == 1
with stdout_to_stderr():
    print("from Python")
    same = os.readlink("/proc/self/fd/1")
assert same == os.readlink("/proc/self/fd/1") != os.readlink("/proc/self/fd/2")
"""
    assert outputs_of(text, redirection=">&-") == ([], ["from Python"])


def test_a_stdout_that_was_closed_before_is_closed_again() -> None:
    text = """
os.close(1)
with stdout_to_stderr():
    puts(b"from C's puts()")
assert not os.path.exists("/proc/self/fd/1")
os._exit(0)
"""
    assert outputs_of(text) == ([], [FROM_C])
