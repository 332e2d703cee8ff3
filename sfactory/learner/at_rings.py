"""Room: who of a learner's threads is at a ring. In: enter, leave. Out: on the status board, since when the first is.

A ring whose lock died with a process keeps whoever uses it for ever. Main notices by this stamp, which covers no time
that a thread does anything else.
"""

from __future__ import annotations

import threading

from sfactory.clock import now
from sfactory.shared.status import StatusRow


class AtRings:
    """For threads of a learner, several of which may be at rings that other processes write or read."""

    def __init__(self, row: StatusRow) -> None:
        self._row = row
        self._since: dict[int, float] = {}
        self._telling = threading.Lock()  # held for the stamp alone, by no one who is at a ring

    def enter_ring(self) -> None:
        """This thread is about to use a ring."""
        with self._telling:
            self._since[threading.get_ident()] = now()
            self._tell()

    def leave_ring(self) -> None:
        """It has."""
        with self._telling:
            del self._since[threading.get_ident()]
            self._tell()

    def _tell(self) -> None:
        self._row.set("in_ring_since", min(self._since.values(), default=0.0))
