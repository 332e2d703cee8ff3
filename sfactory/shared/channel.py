"""Sends small typed messages between processes through bounded faster-fifo queues.

NOTE [Who may block]: readers block in ``get`` for at most BLOCK_S and then check the stop flag. Writers never block,
because every ring has room for the largest possible number of messages in flight. A full ring is therefore a bug (or
its reader stopped reading) and raises an error; no message is dropped. This does not hold for a ring with a lock that
died with a process: see NOTE [Saving waits for no ring].

NOTE [Death and queues]: a ring has only one reader process. A reader killed inside ``get`` can leave the ring's
condition variable in a state in which a second reader makes the next writer hang. The replacement of a dead reader
therefore gets its own ring.

NOTE [Incarnations]: a replaceable reader has several rings; its incarnation is the index of the current one. Main
increments it after the old process is dead and its slots are reclaimed, and then starts the new process. Writers read
it for every message, so messages reach the current reader. Messages in flight to the dead reader are lost, which is
harmless: a process that waits for a reply repeats its request when the incarnation of the replying process has changed
(``CentralActor``). A request contains the incarnation of its sender, so that requests of dead actors are ignored
(``PolicyWorker``). A replacement actor announces slots again; each is counted once (``Inbox``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, Full
from typing import Any, Generic, TypeVar

from sfactory.errors import ChannelFull, MessageTooLarge
from sfactory.messages import Codec
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec
from sfactory.system.operating_system import LINUX

if LINUX:
    from faster_fifo import Queue

RINGS = 8  # per replaceable reader; a few KB each
_MESSAGE_OVERHEAD = 16  # bytes the ring adds to each message (a size_t, rounded up)
_MIN_BYTES = 4096


class _RingHere:
    """As faster-fifo's Queue, where that is not to be had: for the one process of a serial run."""

    def __init__(self, max_size_bytes: int, loads: Callable[[bytes], Any], dumps: Callable[[Any], bytes]) -> None:
        self._free, self._loads, self._dumps = max_size_bytes, loads, dumps
        self._messages: deque[bytes] = deque()
        self._changed = threading.Condition()

    def put(self, message: object, block: bool) -> None:
        """Append; raises Full."""
        data = self._dumps(message)
        size = len(data) + _MESSAGE_OVERHEAD
        with self._changed:
            if size > self._free:
                raise Full
            self._free -= size
            self._messages.append(data)
            self._changed.notify_all()

    def get_many(self, block: bool, timeout: float) -> list[Any]:
        """All messages; raises Empty."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._messages, timeout if block else 0):
                raise Empty
            taken = list(self._messages)
            self._messages.clear()
            self._free += sum(len(data) + _MESSAGE_OVERHEAD for data in taken)
        return [self._loads(data) for data in taken]

    def qsize(self) -> int:
        """Number of messages."""
        return len(self._messages)


class Incarnations:
    """The incarnation of each reader in ``names``, from 0; written only by main. See NOTE [Incarnations].

    current: memoryview of the numbers, which is read twice as fast as an array.
    """

    def __init__(self, names: list[str]) -> None:
        self.__setstate__((list(names), SharedArrays("incarnations", {"current": TensorSpec((len(names),), "int64")})))

    def __getstate__(self) -> tuple[list[str], SharedArrays]:
        return self.names, self._shared

    def __setstate__(self, state: tuple[list[str], SharedArrays]) -> None:
        self.names, self._shared = state
        self.current = self._shared["current"].data


M = TypeVar("M")


class Channel(Generic[M]):
    """A ring with one reader and any number of writers. A replaceable reader has one ring per incarnation."""

    def __init__(
        self,
        reader: str,
        codec: Codec[M],
        capacity: int,
        message_bytes: int = 0,
        incarnations: Incarnations | None = None,
    ) -> None:
        """``capacity``: maximum number of messages in flight. ``message_bytes``: size of the largest message; by
        default the largest fixed message of the codec. ``incarnations``: None if the reader is never replaced.
        """
        self.reader = reader
        self._codec = codec
        self._bytes = max(_MIN_BYTES, capacity * ((message_bytes or codec.max_fixed_bytes) + _MESSAGE_OVERHEAD))
        self._incarnations = incarnations
        self._index = 0 if incarnations is None else incarnations.names.index(reader)
        rings = 1 if incarnations is None else RINGS
        ring = Queue if LINUX else _RingHere
        self._queues = [ring(self._bytes, loads=codec.decode, dumps=codec.encode) for _ in range(rings)]

    @property
    def incarnation(self) -> int:
        """The current incarnation of the reader."""
        return 0 if self._incarnations is None else self._incarnations.current[self._index]

    @property
    def waiting(self) -> int:
        """Number of unread messages. Reads a counter without the lock, which may be lost."""
        return int(self._queues[self.incarnation].qsize())

    @property
    def has_another(self) -> bool:
        """True if there is a ring for one more incarnation."""
        return self.incarnation + 1 < len(self._queues)

    def begin_next_incarnation(self) -> None:
        """Send messages to the ring of the next reader from now on; called by main after the reader is dead."""
        assert self._incarnations is not None, f"{self.reader} cannot be replaced"
        assert self.has_another, f"no ring is left for {self.reader}"
        self._incarnations.current[self._index] += 1

    def put(self, message: M, incarnation: int | None = None) -> None:
        """Send; raises ChannelFull if the ring is full and MessageTooLarge if the message can never fit.

        ``incarnation``: of the intended reader, by default the current one; a message to an earlier one is lost.
        """
        if not self.try_put(message, incarnation):
            size = len(self._codec.encode(message)) + _MESSAGE_OVERHEAD
            if size > self._bytes:
                raise MessageTooLarge(f"a message of {size} bytes for {self.reader}; its ring holds {self._bytes}")
            raise ChannelFull(f"the ring of {self.reader} is full ({self._bytes} bytes): its reader stopped reading")

    def try_put(self, message: M, incarnation: int | None = None) -> bool:
        """Send; return False if the ring is full. ``incarnation``: as for ``put``."""
        try:
            self._queues[self.incarnation if incarnation is None else incarnation].put(message, block=False)
        except Full:
            return False
        return True

    def get(self, timeout: float) -> Sequence[M]:
        """All messages that have arrived, in order; waits up to ``timeout`` seconds for the first; () if none."""
        try:
            queue = self._queues[self.incarnation]
            messages: list[M] = queue.get_many(block=timeout > 0, timeout=max(0.0, timeout))
        except Empty:
            return ()
        return messages
