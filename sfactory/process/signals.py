"""Handles the signals of HANDLED and SIGUSR1 in main, and keeps stdout for results.

The first signal saves and stops, the second ends the run at once. Another one within ECHO_S after it is ignored:
``timeout`` and others signal a process and then its whole group, and systemd may send SIGHUP right after SIGTERM.
SIGUSR1 logs the state of the run. A signal that is ignored at the start (``nohup``, a shell's background job) stays
ignored, also in children. The module does not import torch, so that signals are handled before anything slow happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from sfactory.clock import now
from sfactory.errors import Passing
from sfactory.system.operating_system import POSIX, signal_number
from sfactory.system.streams import say_at_once

_log = logging.getLogger(__name__)

# Batch systems send the last two before they kill: at a limit of the job, or of CPU time, which the kernel sends, too.
_CPU_LIMIT = signal_number("SIGXCPU")
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2", "SIGXCPU")
HANDLED = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))
QUESTION = signal_number("SIGUSR1")
ECHO_S = 0.25
# Signals that main alone answers: a child that gets one, because the whole group did, continues.
FOR_MAIN = (*HANDLED, signal.Signals(QUESTION)) if QUESTION else HANDLED


class Interrupted(Passing):
    """A signal arrived while ``Interrupts.raising``; not an Exception, so that nothing swallows it."""


class TimeIsUp(Passing):
    """Work of a block took longer than it may, see ``bounded``."""


class _Raised(Passing):
    """What a handler of the program has raised, see ``handlers_are_heard``."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def in_main_thread() -> bool:
    """Whether this thread is the one in which handlers of signals run, and which alone may set them."""
    return threading.current_thread() is threading.main_thread()


class Interrupts:
    """Context in which the handled signals are counted; outside the main thread none comes, and none is handled.

    signum: the first signal that came, or None. count: how many came. wake_fd: readable after each.
    raising: True (start-up) raises Interrupted where the signal hits; False only counts.
    raising_again: True raises it for the second signal and those after it.
    on_first: called by the first signal, wherever the main thread is. asked: a QUESTION came and was not answered yet.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.count = 0
        self.raising = True
        self.raising_again = False
        self.on_first: Callable[[], None] | None = None
        self.asked = False
        self.wake_fd, self._wake_write = os.pipe()
        if POSIX:  # elsewhere nothing waits for it
            os.set_blocking(self.wake_fd, False)
            os.set_blocking(self._wake_write, False)
        self._last: float | None = None  # when the signal came that was counted last
        self._previous: dict[int, Any] = {}
        self._taken_back: set[int] = set()

    def __enter__(self) -> Interrupts:
        for signum in _not_ignored() if in_main_thread() else ():
            self._previous[signum] = signal.signal(signum, self._ask if signum == QUESTION else self._handle)
        return self

    def take_back(self) -> None:
        """Handle signals again that an env, or another library, has given handlers of its own: these would not save.

        An env may do so in every reset; of each signal it is said once. QUESTION may be the env's: nothing is lost.
        """
        for signum in self._previous.keys() & HANDLED:
            if signal.getsignal(signum) != self._handle:
                signal.signal(signum, self._handle)
                if signum not in self._taken_back:
                    self._taken_back.add(signum)
                    _log.warning(
                        "the env, or a library, had set a handler of its own for %s; it is not used, so that the run "
                        "saves when this signal comes",
                        signal.Signals(signum).name,
                    )

    def __exit__(self, *_: object) -> None:
        self.raising = self.raising_again = False
        # After a signal the process ends, and another one must not change how. At its end the interpreter replaces
        # Python's handlers by the default, but not SIG_IGN.
        handlers = dict.fromkeys(HANDLED, signal.SIG_IGN) if self.count else self._previous
        for signum, handler in handlers.items():
            signal.signal(signum, handler)

    def restore(self) -> None:
        """Restore the earlier handlers, even if signals came, in a process that continues. For the main thread.

        A second call does nothing.
        """
        previous, self._previous = self._previous, {}
        for signum, handler in previous.items():
            if handler is not None:  # one that was not set by Python cannot be set again
                signal.signal(signum, handler)
        fds, self.wake_fd, self._wake_write = (self.wake_fd, self._wake_write), -1, -1
        for fd in fds:
            if fd >= 0:  # a second call must not close what another file has become
                os.close(fd)

    @property
    def exit_code(self) -> int:
        """128 + the first signal."""
        assert self.signum is not None, "no signal came"
        return 128 + self.signum

    @property
    def announcement(self) -> str:
        """What the log says of the first signal of a run that saves."""
        came = "a signal" if self.signum is None else signal.Signals(self.signum).name
        return f"{came} came: stopping and saving; a second signal ends the run at once, without saving"

    def drain(self) -> None:
        """Empty the wake-up pipe."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.count and signum == _CPU_LIMIT:
            return  # the kernel repeats it every second, and each process of the run may get it
        moment = now()
        # No call from here to the assignment: at any call, the handler of an echo may run inside this one.
        last, self._last = self._last, moment
        if last is not None and moment - last < ECHO_S:
            self._last = last
            return
        self.signum = self.signum or signum
        self.count += 1
        if self.count == 1 and self.on_first is not None:
            self.on_first()
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"!")
        if self.raising or (self.raising_again and self.count > 1):
            raise Interrupted(signum)

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True


def leave_signals_to_main() -> None:
    """In a child: do nothing when a signal for main comes. Programs that an env starts do not inherit that."""
    for signum in _not_ignored():
        signal.signal(signum, _leave_it_to_main)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_MAIN)


def _not_ignored() -> list[signal.Signals]:
    return [signum for signum in FOR_MAIN if signal.getsignal(signum) != signal.SIG_IGN]


def _leave_it_to_main(signum: int, frame: FrameType | None) -> None:
    """Do nothing: main gets the same signal. But the kernel sends SIGXCPU to that process alone that has used it up."""
    main = multiprocessing.parent_process()
    if signum == _CPU_LIMIT and main is not None and main.pid is not None:
        os.kill(main.pid, signum)


def _in_forked() -> None:
    """A process that an env forks ends by SIGTERM, as its terminate() expects. Ctrl-C is left to main, as in actors.

    It does not keep the name of its actor, of which there must be one.
    """
    handlers = {signum: signal.getsignal(signum) for signum in FOR_MAIN}
    ours = [
        signum
        for signum, handler in handlers.items()
        if handler is _leave_it_to_main or isinstance(getattr(handler, "__self__", None), Interrupts)
    ]
    for signum in ours:
        ends = signum in (signal.SIGTERM, signal.SIGHUP, _CPU_LIMIT)
        signal.signal(signum, signal.SIG_DFL if ends else _leave_it_to_main)
    if ours:
        set_process_name("env-child")


if POSIX:
    os.register_at_fork(after_in_child=_in_forked)


@contextlib.contextmanager
def signals_held_back(awaited: str = "") -> Iterator[None]:
    """Handle signals for main only when the block ends. In another thread no handler runs, and they are only blocked.

    They are blocked, and processes started inside inherit that, so a signal to the group does not end them. That alone
    holds nothing back here: the kernel gives a signal to any thread that does not block it, such as those of BLAS, and
    Python then runs its handler in the main thread. So the handlers are exchanged, too, except those that were not set
    by Python, which could not be restored, those of a block around this one, which go on recording, and ignored ones:
    programs started inside are to ignore the same.

    awaited: what happens inside, if it takes seconds. Then signals are not blocked, and each is answered by a line.
    """
    heard: list[int] = []

    def hear(signum: int, frame: FrameType | None) -> None:
        if awaited and signum not in heard:
            say_at_once(f"{signal.Signals(signum).name} is handled when {awaited}\n")
        heard.append(signum)

    found = {signum: signal.getsignal(signum) for signum in _not_ignored() if in_main_thread()}
    handlers = {
        signum: handler
        for signum, handler in found.items()
        if handler is not None and getattr(handler, "__code__", None) is not hear.__code__
    }
    before = _block(() if awaited else FOR_MAIN)
    try:
        for signum in handlers:
            signal.signal(signum, hear)
            if POSIX:
                signal.siginterrupt(signum, False)  # code in C goes on as if nothing had come
        yield
    finally:
        _block(FOR_MAIN)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        if POSIX:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in heard:
            signal.raise_signal(number)


@contextlib.contextmanager
def handlers_are_heard() -> Iterator[None]:
    """What the program's own handlers of signals raise, such as KeyboardInterrupt, is raised by the block.

    Without it, code inside that handles all that an env raises would take it for a fault of the env.
    """
    own: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def listen() -> None:
        own.clear()
        own.update({signum: handler for signum in HANDLED if callable(handler := signal.getsignal(signum))})
        for signum in own:
            signal.signal(signum, hear)

    def give_back() -> None:
        for signum, handler in own.items():
            signal.signal(signum, handler)

    def hear(signum: int, frame: FrameType | None) -> None:
        handler = own[signum]
        give_back()  # it may set another one, such as the default, by which a second signal ends the program
        try:
            handler(signum, frame)
        except Passing:
            raise
        except BaseException as error:
            raise _Raised(error) from None
        finally:
            listen()

    if not in_main_thread():
        yield
        return
    try:
        listen()
        yield
    except _Raised as raised:
        raise raised.error from None
    finally:
        give_back()


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in what runs inside, once it has taken so long, and every second from then on.

    Code in C that does not return is not ended. Windows has no such timer, nor has another thread than the main one.
    """
    if not (hasattr(signal, "setitimer") and in_main_thread()):
        yield
        return

    inside = True

    def end(signum: int, frame: FrameType | None) -> None:
        if inside:
            raise TimeIsUp(f"{seconds:g} s are over")

    handler = signal.signal(signal.SIGALRM, end)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        inside = False  # raised in one of the next lines, it would leave the timer behind
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)


def _block(signums: Iterable[int]) -> set[int]:
    """Block signals, and return those that were blocked before; Windows has no such mask."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, signums)) if POSIX else set()


_LIBC = ctypes.CDLL(None if POSIX else "ucrtbase")
_COMM = Path("/proc/self/comm")


def process_name() -> str:
    """The name of this process, as ``ps`` shows it; "" if there is no /proc."""
    with contextlib.suppress(OSError):
        return _COMM.read_text(errors="surrogateescape").strip()  # the kernel cuts it, also within a letter
    return ""


def set_process_name(name: str) -> str:
    """Name this process as ``ps`` shows it, if /proc can be written to; returns the name before."""
    before = process_name() or name
    with contextlib.suppress(OSError):
        _COMM.write_text(name, errors="surrogateescape")
    return before


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What Python, C and child processes print to stdout inside goes to stderr; afterwards stdout is as it was.

    C's stdio buffers what it prints to a pipe or a file, at the latest to the end of the process, where it would come
    after the result. So buffers are emptied before file descriptor 1 changes its meaning.
    """
    _flush()
    with contextlib.ExitStack() as at_end:
        if sys.__stdout__ is not None:  # otherwise descriptor 1 belongs to another file, or to none
            try:
                kept = os.dup(1)
            except OSError:  # it was closed on the way
                at_end.callback(os.close, 1)
            else:
                at_end.callback(os.close, kept)
                at_end.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        at_end.callback(_flush)
        with contextlib.redirect_stdout(sys.stderr):
            yield


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        # Foreign code may have closed or detached it; a full disk is reported where the result is printed.
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    _LIBC.fflush(None)
