"""Order of work on a GPU: streams and events with vector clocks, by which unordered accesses to memory are found.

A clock maps streams to the number of operations that have surely ended. What is given to a stream comes after all that
was given to it before, after what it waits for, and after all that the host knows to have ended. Source of the clocks:
Mattern 1989, "Virtual time and global states of distributed systems".
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import torch

Clock = dict[int, int]
ASLEEP = "Event.synchronize, asleep"  # in all other waits the thread keeps its core busy


class RaceError(AssertionError):
    """Memory is read or written although nothing orders that after an earlier access."""


class WrongGpuError(AssertionError):
    """A thread uses a GPU that it has not chosen first."""


_WAITS = "system/gpu.py"  # who asks it to wait is of interest


class Place(NamedTuple):
    """A line of sfactory, or of a test if no line of sfactory has called it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"

    @classmethod
    def present(cls) -> Place:
        """The innermost one."""
        frame: FrameType | None = sys._getframe(1)
        of_test: Place | None = None
        while frame is not None:
            code = frame.f_code
            for package in ("/sfactory/", "/tests/"):
                _, found, file = code.co_filename.rpartition(package)
                if found and package == "/sfactory/" and file != _WAITS:
                    return cls(f"sfactory/{file}", frame.f_lineno, code.co_name)
                if package == "/tests/" and found and of_test is None and not file.startswith("support/"):
                    of_test = cls(f"tests/{file}", frame.f_lineno, code.co_name)
            frame = frame.f_back
        return of_test or cls("?", 0, "?")


def joined(one: Clock, other: Clock) -> Clock:
    """The later of both, for each stream."""
    if one.items() >= other.items():
        return one
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in one.keys() | other.keys()}


def _is_after(clock: Clock, other: Clock) -> bool:
    return all(clock.get(key, 0) >= count for key, count in other.items())


class Memory:
    """When a piece of memory, of a device or of the host, was accessed last."""

    def __init__(self) -> None:
        self._written: Clock = {}
        self._read: Clock = {}

    def read(self, clock: Clock, what: str) -> None:
        """By work after which the clock is ``clock``. Raises RaceError."""
        if not _is_after(clock, self._written):
            raise RaceError(f"{what} at {Place.present()} reads memory that may not be written yet")
        self._read = joined(self._read, clock)

    def write(self, clock: Clock, what: str) -> None:
        """As ``read``."""
        if not _is_after(clock, self._written):
            raise RaceError(f"{what} at {Place.present()} writes memory that may not be written yet")
        if not _is_after(clock, self._read):
            raise RaceError(f"{what} at {Place.present()} writes memory that may still be read")
        self._written, self._read = clock, {}


class Stream:
    """Stands for torch.cuda.Stream."""

    def __init__(self, order: StreamOrder, device: torch.device) -> None:
        self.order, self.device, self.clock, self.number = order, device, Clock(), order.next_number()

    def wait_event(self, event: Event) -> None:
        self.clock = joined(self.clock, event.clock)

    def wait_stream(self, stream: Stream) -> None:
        self.clock = joined(self.clock, stream.clock)

    def synchronize(self) -> None:
        self.order.wait(self.clock, "Stream.synchronize")

    def issue(self) -> Clock:
        """The clock after the next piece of work of this stream."""
        start = joined(self.clock, self.order.host)
        self.clock = {**start, self.number: start.get(self.number, 0) + 1}
        return self.clock


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, order: StreamOrder, blocking: bool) -> None:
        self.order, self.clock, self._blocking = order, Clock(), blocking

    def record(self, stream: Stream | None = None) -> None:
        self.clock = (stream or self.order.current_stream()).clock

    def synchronize(self) -> None:
        self.order.wait(self.clock, ASLEEP if self._blocking else "Event.synchronize")


class _Thread(threading.local):
    """Of each thread: the GPU that it has chosen, and the streams that it has entered."""

    def __init__(self) -> None:
        self.chosen: int | None = None
        self.entered: list[Stream] = []


class StreamOrder:
    """Streams of all GPUs, the clock of the host, and what torch.cuda knows of each thread.

    The threads of the host count as one: what one of them has waited for, all know. That is so where work passes
    between them through queues.
    """

    def __init__(self) -> None:
        self.host: Clock = {}
        self.thread = _Thread()
        self.lock = threading.RLock()  # held while clocks change
        self._numbers = 0
        self._defaults: dict[int, Stream] = {}

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def wait(self, clock: Clock, what: str) -> None:
        """The host waits for what ``clock`` has begun."""
        with self.lock:
            known = _is_after(self.host, clock)
            self.host = joined(self.host, clock)
            self.waited(what, known)

    def waited(self, what: str, known: bool) -> None:
        """The host has waited, for the reason ``what``; a subclass may count. known: it had ended, as the host knew."""

    def chosen(self, what: str) -> int:
        """The GPU that this thread has chosen. Raises WrongGpuError if it has not."""
        if self.thread.chosen is None:
            name = threading.current_thread().name
            raise WrongGpuError(f"{what}: the thread {name!r} has not called torch.cuda.set_device")
        return self.thread.chosen

    def index_of(self, device: torch.device | str | int | None, what: str) -> int:
        """The number of a GPU, which has to be the one that this thread has chosen."""
        chosen = self.chosen(what)
        named = device if isinstance(device, int) else None if device is None else torch.device(device).index
        if named is not None and named != chosen:
            raise WrongGpuError(f"{what} uses GPU {named}, and the thread has chosen GPU {chosen}")
        return chosen

    def new_stream(self, device: torch.device | str | int | None = None) -> Stream:
        return Stream(self, torch.device("cuda", self.index_of(device, "torch.cuda.Stream")))

    def new_event(self, *, blocking: bool = False) -> Event:
        self.chosen("torch.cuda.Event")
        return Event(self, blocking)

    def current_stream(self, device: torch.device | str | int | None = None) -> Stream:
        index = self.index_of(device, "torch.cuda.current_stream")
        if self.thread.entered:
            return self.thread.entered[-1]
        if index not in self._defaults:
            self._defaults[index] = Stream(self, torch.device("cuda", index))
        return self._defaults[index]

    @contextlib.contextmanager
    def entered(self, stream: Stream) -> Iterator[None]:
        """Stands for torch.cuda.stream."""
        self.index_of(stream.device, "torch.cuda.stream")
        self.thread.entered.append(stream)
        try:
            yield
        finally:
            self.thread.entered.pop()
