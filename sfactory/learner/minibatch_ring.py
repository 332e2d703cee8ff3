"""Room: several datasets, learned from in turn, pass after pass. In: what comes new. Out: what to learn from next.

Source: RLlib's MinibatchBuffer. With ``size`` datasets in turn, two passes over one of them are ``size`` passes apart,
so that updates from the others lie between; with one, its passes follow one another as epochs do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741


class MinibatchRing(Generic[I]):
    """``size`` places that are visited in turn. Each item gets exactly its passes, unless they are cut short.

    The first item gets ``warmup`` passes, each later one a pass more, up to ``passes``.
    """

    def __init__(self, size: int, passes: int, warmup: int) -> None:
        """``warmup``: 0 is the same as ``passes``."""
        self._items: list[I | None] = [None] * size
        self._left = [0] * size
        self._at = 0
        self._passes, self._next_passes = passes, warmup or passes

    @property
    def live(self) -> list[I]:
        """Items that have passes left, in the order of their places."""
        return [item for item in self._items if item is not None]

    def turn(self, fetch: Callable[[], I | None]) -> I | None:
        """The item whose turn it is; where its place is empty, what ``fetch`` gives: None leaves the turn where it is.

        Every item is answered by ``passed`` before the next turn.
        """
        if self._items[self._at] is None and (item := fetch()) is not None:
            self._items[self._at] = item
            self._left[self._at] = self._next_passes
            self._next_passes = min(self._passes, self._next_passes + 1)
        return self._items[self._at]

    def passed(self, more: bool = True) -> bool:
        """The item whose turn it is had its pass; True if it was the last. ``more``: False cuts its passes short."""
        self._left[self._at] -= 1
        last = not more or self._left[self._at] == 0
        if last:
            self._items[self._at] = None
        self._at = (self._at + 1) % len(self._items)
        return last

    def skip(self) -> None:
        """Nothing new comes to the place whose turn it is: it is the turn of the next item with passes left, if any."""
        for _ in self._items:
            if self._items[self._at] is not None:
                return
            self._at = (self._at + 1) % len(self._items)
