"""Allocates memory and events that all processes of a run share.

NOTE [Nameless memory]: blocks are anonymous memory files (memfd). They have no name, so nothing is left behind when all
processes of a run are killed, and the size of /dev/shm does not matter. A block is passed to a child only while the
child starts, as a duplicated file descriptor.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from multiprocessing.connection import wait
from multiprocessing.context import assert_spawning
from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.spec import TensorSpec
from sfactory.system.operating_system import LINUX

_ALIGN = 64  # one cache line, so that arrays of different writers never share a cache line


class SharedArrays:
    """Named, zero-initialised numpy arrays in one shared block."""

    def __init__(self, name: str, fields: Mapping[str, TensorSpec], fd: int | None = None) -> None:
        """``fd``: of an existing block; None: allocates a new one, which stays in this process if this is not Linux."""
        if fd is None and LINUX:
            fd = os.memfd_create(f"sfactory-{name}", os.MFD_CLOEXEC)
            os.ftruncate(fd, planned_bytes(fields))
        self._name, self._fields, self._fd = name, dict(fields), -1 if fd is None else fd
        if fd is not None:
            weakref.finalize(self, os.close, fd)
        self._mmap = mmap.mmap(self._fd, planned_bytes(fields))
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for key, spec in fields.items():
            self._arrays[key] = np.ndarray(spec.shape, spec.dtype, self._mmap, offset)
            offset += _aligned(spec.nbytes)

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        return self._arrays[key]

    def __contains__(self, key: str) -> bool:
        return key in self._arrays

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)  # pickling is allowed only while a child starts; otherwise DupFd would start a thread
        return (attach, (SharedArrays, reduction.DupFd(self._fd), self._name, self._fields))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def planned_bytes(fields: Mapping[str, TensorSpec]) -> int:
    """Bytes that ``SharedArrays`` needs for these fields."""
    return max(_ALIGN, sum(_aligned(spec.nbytes) for spec in fields.values()))


def attach(kind: Callable[..., Any], handle: Any, *arguments: Any) -> Any:
    """In the child: rebuild an object from the descriptor that it was sent."""
    return kind(*arguments, fd=handle.detach())


class SharedTexts:
    """One text per row, of at most ``nbytes`` bytes. Each row has one writer at a time."""

    def __init__(self, name: str, rows: int, nbytes: int) -> None:
        fields = {"length": TensorSpec((rows,), "int64"), "text": TensorSpec((rows, nbytes), "uint8")}
        self._shared = SharedArrays(name, fields)

    def write(self, row: int, text: bytes) -> None:
        """Store ``text``, which must fit."""
        self._shared["text"][row, : len(text)] = memoryview(text)
        self._shared["length"][row] = len(text)

    def read(self, row: int) -> str:
        """The text of ``row``, '' if there is none. Bytes that are no UTF-8 are replaced."""
        length = int(self._shared["length"][row])
        return self._shared["text"][row, :length].tobytes().decode(errors="replace")


class SharedEvent:
    """Closed until any process calls ``open``; then open forever. An eventfd: waiting needs no polling and no lock."""

    def __init__(self, fd: int | None = None) -> None:
        self._event = None if LINUX else threading.Event()
        if LINUX:
            self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if fd is None else fd
            weakref.finalize(self, os.close, self._fd)

    def open(self) -> None:
        """Release all current and future waiters."""
        if self._event is not None:
            self._event.set()
        else:
            os.eventfd_write(self._fd, 1)

    def wait(self, timeout: float) -> bool:
        """Block up to ``timeout`` seconds; True if the event is open."""
        if self._event is not None:
            return self._event.wait(timeout)
        return bool(wait([self._fd], timeout))  # select() takes no descriptors above 1023

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)  # see SharedArrays
        return (attach, (SharedEvent, reduction.DupFd(self._fd)))
