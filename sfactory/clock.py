"""Room: time. In: the monotonic clock. Out: deadlines and cadences; wall-clock time is never used for either."""

from __future__ import annotations

import time

now = time.monotonic

# Longest time any process blocks before it looks at the stop flag again. See NOTE [Who may block].
BLOCK_S = 0.5


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
