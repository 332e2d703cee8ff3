"""Room: typed, bounded queues of small messages over faster-fifo. In: messages. Out: messages, in order.

NOTE [Who may block]: readers block in ``get`` for at most BLOCK_S and then look at the stop flag; writers
never block, because every ring is sized for the most messages that can be under way. A full ring is
therefore a defect (or a reader that stopped reading) and fails loudly; nothing is ever dropped.
None of this holds in a ring whose lock died with a process: see NOTE [Saving waits for no ring].

NOTE [Death and queues]: a ring has exactly one reader in its life. A reader killed inside ``get`` can
leave the ring's condition variable in a state where a second reader makes the next writer hang, so a
replacement for a dead reader is given a ring of its own: see NOTE [Lives].

Room: how often each reader of a ring was replaced. In: main's writes alone. Out: which of its rings is in use.

NOTE [Lives]: a reader that dies is replaced by a process with a ring of its own (see NOTE [Death and queues]). The life
of a reader is the number of that ring. Main counts it up once the process before is dead and its slots are reclaimed,
and starts the next one after that; writers look at it with every message, so that what they send reaches the reader
that lives. What was under way to the dead one is lost, and harmless: whoever waits for an answer asks again when the
life of who is to answer has changed (``CentralActor``), and a request tells the life of who asked, so that nobody acts
for the dead (``PolicyWorker``). Slots are announced again by the actor that takes over, and counted once (``Inbox``).
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, Full
from typing import Generic, TypeVar

from faster_fifo import Queue

from sfactory.errors import ChannelFull, MessageTooLarge
from sfactory.messages import Codec
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec

RINGS = 8  # of each reader that can be replaced; a few KB each


class Incarnations:
    """One count for each reader, in the order of ``names``."""

    def __init__(self, names: list[str]) -> None:
        self._names = list(names)
        self._shared = SharedArrays("lives", {"life": TensorSpec((len(names),), "int64")})

    def of(self, name: str) -> Incarnation:
        """The life of the reader called ``name``."""
        return Incarnation(self._shared, self._names.index(name))


class Incarnation:
    """Of one reader; 0 is the first."""

    def __init__(self, shared: SharedArrays, index: int) -> None:
        self._shared, self._index = shared, index
        self._attach()

    def _attach(self) -> None:
        self._incarnations = self._shared["life"].data  # one number is read at twice the speed of an array's

    def __getstate__(self) -> tuple[SharedArrays, int]:
        return self._shared, self._index

    def __setstate__(self, state: tuple[SharedArrays, int]) -> None:
        self._shared, self._index = state
        self._attach()

    @property
    def number(self) -> int:
        """Which life it is now."""
        return self._incarnations[self._index]

    def begin_next(self) -> None:
        """By main, once the process of the present life is dead."""
        self._incarnations[self._index] += 1


M = TypeVar("M")

_MESSAGE_OVERHEAD = 16  # bytes the ring adds to each message (a size_t, rounded up)
_MIN_BYTES = 4096


class Channel(Generic[M]):
    """A ring with one reader and any number of writers; several, one for each life, of a reader that can be replaced.

    ``capacity``: most messages under way at once. ``message_bytes``: size of the largest; by default the
    largest fixed message of the codec.
    """

    def __init__(
        self,
        reader: str,
        codec: Codec[M],
        capacity: int,
        message_bytes: int = 0,
        incarnation: Incarnation | None = None,
    ) -> None:
        """``incarnation``: None if the reader lives but once."""
        self.reader = reader
        self._codec = codec
        self._bytes = max(_MIN_BYTES, capacity * ((message_bytes or codec.max_fixed_bytes) + _MESSAGE_OVERHEAD))
        self._of_reader = incarnation
        rings = 1 if incarnation is None else RINGS
        self._queues = [Queue(self._bytes, loads=codec.decode, dumps=codec.encode) for _ in range(rings)]

    @property
    def incarnation(self) -> int:
        """Which life the reader is in."""
        return 0 if self._of_reader is None else self._of_reader.number

    @property
    def waiting(self) -> int:
        """How many messages its reader has not read yet. A counter is read, without the lock that may be lost."""
        return int(self._queues[self.incarnation].qsize())

    @property
    def has_another(self) -> bool:
        """Whether there is a ring for one more life."""
        return self.incarnation + 1 < len(self._queues)

    def begin_next_incarnation(self) -> None:
        """By main, once the reader is dead: from now on messages go to the ring of the one that will replace it."""
        assert self._of_reader is not None, f"{self.reader} lives but once"
        assert self.has_another, f"no ring is left for {self.reader}"
        self._of_reader.begin_next()

    def put(self, message: M, incarnation: int | None = None) -> None:
        """Send; raises ChannelFull if the ring is full and MessageTooLarge if the message can never fit.

        ``incarnation``: of the reader that is meant, if not whoever lives; a message for a dead one is lost.
        """
        if not self.try_put(message, incarnation):
            size = len(self._codec.encode(message)) + _MESSAGE_OVERHEAD
            if size > self._bytes:
                raise MessageTooLarge(f"a message of {size} bytes for {self.reader}; its ring holds {self._bytes}")
            raise ChannelFull(f"the ring of {self.reader} is full ({self._bytes} bytes): its reader stopped reading")

    def try_put(self, message: M, incarnation: int | None = None) -> bool:
        """Send if the queue has room; return False if it is full. ``incarnation``: as for ``put``."""
        try:
            self._queues[self.incarnation if incarnation is None else incarnation].put(message, block=False)
        except Full:
            return False
        return True

    def get(self, timeout: float) -> Sequence[M]:
        """All messages that have arrived, in order; blocks up to ``timeout`` seconds for the first, () if none."""
        try:
            queue = self._queues[self.incarnation]
            messages: list[M] = queue.get_many(block=timeout > 0, timeout=max(0.0, timeout))
        except Empty:
            return ()
        return messages
