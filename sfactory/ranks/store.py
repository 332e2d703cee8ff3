"""Enters torchrun's store with all other ranks, and asks it with a bound on how long it may take to answer.

torchrun keeps its store when it restarts ranks, with all that those before them have written. A call of torch's store
waits without end for an answer, while the network between the two machines is cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

from torch._C._distributed_c10d import PrefixStore, Store

from sfactory.clock import BLOCK_S, Deadline, looks
from sfactory.errors import RankLost
from sfactory.ranks.place import START_S
from sfactory.system.background import in_background

BEAT_S = 1.0
CALL = "call"  # the key that a rank sets which wants to end
_LOOK_MOST_S = 0.5
_Found = TypeVar("_Found")


def enter(store: Store, rank: int, world: int, about: str, give_up: Callable[[], bool]) -> tuple[Store, list[str]]:
    """The part of ``store`` that belongs to this start of all ranks, and what they say ``about`` themselves, by rank.

    Each rank writes a word that nothing before it has written. The first one lists the words that it finds, again and
    again, until every rank has found its own in the list. Raises RankLost if one does not within START_S, or
    ``give_up()`` is true.
    """
    keys, word = [f"word/{each}" for each in range(world)], f"{uuid.uuid4().hex} {about}"
    store.set(keys[rank], word)
    deadline, found, written = Deadline(START_S), keys, ""
    for _ in looks(lambda: give_up() or deadline.passed, _LOOK_MOST_S):
        if rank == 0 and store.check(keys):
            heard = json.dumps([content.decode() for content in store.multi_get(keys)])
            if heard != written:
                store.set("list", written := heard)
        listed = store.get("list").decode() if store.check(["list"]) else "[]"
        if word in (words := json.loads(listed)):
            name = hashlib.sha256(listed.encode()).hexdigest()[:16]
            found = [f"{name}/{each}" for each in range(world)]
            if rank or store.check(found[1:]):  # the first one is the last to find its own
                store.set(found[rank], "")
            if store.check(found[:1]):
                return PrefixStore(name, store), [each.partition(" ")[2] for each in words]
    missing = [str(each) for each, key in enumerate(found) if each != rank and not store.check([key])]
    raise RankLost(f"of {world} ranks these have not started: {', '.join(missing)}")


class StoreLost(RuntimeError):
    """The store has given no answer for too long."""


class AnsweringStore:
    """The store of all ranks, in which this one shows that it is alive.

    Questions are asked in a thread that can be left behind. Signs of life are written over the same connection, each
    call after the other, and show whether the store still answers.
    store: may be replaced by a part of itself; signs of life are written there from then on.
    is_called: whether CALL is set, as of the last sign of life, which costs no question of its own.
    """

    def __init__(self, store: Store, timeout_s: float) -> None:
        """timeout_s: without an answer, after which ``ask`` raises."""
        self.store, self._timeout_s = store, timeout_s
        self._answers = 0
        self._is_lost = self.is_called = False

    def begin_to_beat(self, key: str) -> None:
        """Write another number to ``key`` every second, for as long as this process lives and the store answers."""
        threading.Thread(target=self._beat, args=(key,), name="beat", daemon=True).start()

    def ask(self, question: Callable[[Store], _Found]) -> _Found:
        """What ``question``, called with torch's store in another thread, returns or raises. Raises StoreLost."""
        answer = in_background("store", lambda: question(self.store))
        waited_s, answers = 0.0, self._answers
        while not wait([answer], BLOCK_S).done and not self._is_lost:
            # Time in which this process was stopped, too, does not count.
            waited_s, answers = waited_s + BLOCK_S if answers == self._answers else 0.0, self._answers
            self._is_lost = waited_s > self._timeout_s
        if not answer.done():
            raise StoreLost(f"no answer for {self._timeout_s:g} s (--rank_timeout_sec)")
        return answer.result()

    def _beat(self, key: str) -> None:
        with contextlib.suppress(RuntimeError):
            while True:
                self.store.set(key, str(self._answers))
                self.is_called = self.store.check([CALL])  # to set a key waits for no answer
                self._answers += 1
                time.sleep(BEAT_S)
