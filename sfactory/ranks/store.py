"""Asks torchrun's store, with a bound on how long it may take to answer.

A call of torch's store waits without end for an answer, while the network between the two machines is cut. So calls
are made in a thread that can be left behind. Signs of life of this rank are written over the same connection, each
after the other, and show whether the store still answers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from torch.distributed import Store

from sfactory.clock import BLOCK_S

BEAT_S = 1.0
_Found = TypeVar("_Found")


class StoreLost(RuntimeError):
    """The store has given no answer for too long."""


class AnsweringStore:
    """The store of all ranks, in which this one shows that it is alive."""

    def __init__(self, store: Store, timeout_s: float) -> None:
        """timeout_s: without an answer, after which ``ask`` raises."""
        self._store, self._timeout_s = store, timeout_s
        self._answers = 0
        self._is_lost = False

    def begin_to_beat(self, key: str) -> None:
        """Write another number to ``key`` every second, for as long as this process lives and the store answers."""
        threading.Thread(target=self._beat, args=(key,), name="beat", daemon=True).start()

    def ask(self, question: Callable[[Store], _Found]) -> _Found:
        """What ``question``, called with torch's store in another thread, returns or raises. Raises StoreLost."""
        found: list[_Found] = []
        raised: list[BaseException] = []

        def call() -> None:
            try:
                found.append(question(self._store))
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=call, name="store", daemon=True)
        thread.start()
        waited_s, answers = 0.0, self._answers
        thread.join(BLOCK_S)
        while thread.is_alive() and not self._is_lost:
            # Time in which this process was stopped, too, does not count.
            waited_s, answers = waited_s + BLOCK_S if answers == self._answers else 0.0, self._answers
            self._is_lost = waited_s > self._timeout_s
            thread.join(BLOCK_S)
        if raised:
            raise raised[0]
        if not found:
            raise StoreLost(f"no answer for {self._timeout_s:g} s (--rank_timeout_sec)")
        return found[0]

    def _beat(self, key: str) -> None:
        with contextlib.suppress(RuntimeError):
            while True:
                self._store.set(key, str(self._answers))
                self._store.check([key])  # to set a key waits for no answer
                self._answers += 1
                time.sleep(BEAT_S)
