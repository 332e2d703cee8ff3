"""Room: how often each reader of a ring was replaced. In: main's writes alone. Out: which of its rings is in use.

NOTE [Lives]: a reader that dies is replaced by a process with a ring of its own (see NOTE [Death and queues]). The life
of a reader is the number of that ring. Main counts it up once the process before is dead and its slots are reclaimed,
and starts the next one after that; writers look at it with every message, so that what they send reaches the reader
that lives. What was under way to the dead one is lost, and harmless: whoever waits for an answer asks again when the
life of who is to answer has changed (``ActorWorker``), and a request tells the life of who asked, so that nobody acts
for the dead (``PolicyWorker``). Slots are announced again by the actor that takes over, and counted once (``Inbox``).
"""

from __future__ import annotations

from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec

RINGS = 8  # of each reader that can be replaced; a few KB each


class Lives:
    """One count for each reader, in the order of ``names``."""

    def __init__(self, names: list[str]) -> None:
        self._names = list(names)
        self._shared = SharedArrays("lives", {"life": TensorSpec((len(names),), "int64")})

    def of(self, name: str) -> Life:
        """The life of the reader called ``name``."""
        return Life(self._shared, self._names.index(name))


class Life:
    """Of one reader; 0 is the first."""

    def __init__(self, shared: SharedArrays, index: int) -> None:
        self._shared, self._index = shared, index
        self._attach()

    def _attach(self) -> None:
        self._lives = self._shared["life"].data  # one number is read at twice the speed of an array's

    def __getstate__(self) -> tuple[SharedArrays, int]:
        return self._shared, self._index

    def __setstate__(self, state: tuple[SharedArrays, int]) -> None:
        self._shared, self._index = state
        self._attach()

    @property
    def number(self) -> int:
        """Which life it is now."""
        return self._lives[self._index]

    def begin_next(self) -> None:
        """By main, once the process of the present life is dead."""
        self._lives[self._index] += 1
