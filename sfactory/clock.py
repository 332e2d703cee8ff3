"""Deadlines, cadences and time awake, all by the monotonic clock."""

from __future__ import annotations

import time

now = time.monotonic

# Longest time any process blocks before it looks at the stop flag again. See NOTE [Who may block].
BLOCK_S = 0.5
PAUSE_S = 4 * BLOCK_S


class Deadline:
    """A moment ``seconds`` from now, asked how much time is left."""

    def __init__(self, seconds: float) -> None:
        self._at = now() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._at - now())

    @property
    def passed(self) -> bool:
        """True once the moment is over."""
        return now() >= self._at


class Awake:
    """Time in which this process was awake: what passed between two looks counts as PAUSE_S at most.

    All processes of a run may be stopped for a while, by Ctrl-Z or with the whole machine, and then resume.
    """

    def __init__(self) -> None:
        self._looked_at, self.seconds = now(), 0.0

    def look(self) -> float:
        """Seconds so far; to be asked at least every PAUSE_S."""
        moment = now()
        self.seconds += min(moment - self._looked_at, PAUSE_S)
        self._looked_at = moment
        return self.seconds


class Every:
    """A cadence: ``due()`` is True at most once per ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._next = now() + seconds

    @property
    def left(self) -> float:
        """Seconds until the next beat, never below 0."""
        return max(0.0, self._next - now())

    def due(self) -> bool:
        """True if a beat is due; the next one is then ``seconds`` from now."""
        moment = now()
        if moment < self._next:
            return False
        self._next = moment + self.seconds
        return True
