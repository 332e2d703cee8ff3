"""Room: noticing that a process makes no headway. In: busy-since stamps of the status board. Out: warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sfactory.clock import now
from sfactory.shared.status import State, StatusBoard

log = logging.getLogger(__name__)

STALL_S = 30.0
_WORK = {
    State.STARTING: "making one environment",
    State.RESETTING: "the first reset of one environment",
}


class StallWatch:
    """Warns, once per stall, of each process that has worked on one thing for longer than ``limit_s`` seconds.

    ``who_waits``: text that is told with each warning, or with several at once.
    """

    def __init__(
        self,
        status: StatusBoard,
        names: list[str],
        limit_s: float = STALL_S,
        who_waits: Callable[[], str] | None = None,
    ) -> None:
        self._rows = {name: status.row(name) for name in names}
        self._limit_s, self._who_waits = limit_s, who_waits
        self._warned_of: dict[str, float] = {}

    def look(self) -> list[str]:
        """Warn of new stalls; returns the names of the processes that were warned of now."""
        moment, stalled = now(), []
        for name, row in self._rows.items():
            since = row.get("busy_since")
            if since and moment - since > self._limit_s and self._warned_of.get(name) != since:
                self._warned_of[name] = since
                stalled.append(name)
                work = _WORK.get(State(int(row.get("state"))), "one step")
                log.warning(
                    "%s has been busy with %s for %.0f s; is its environment stuck?", name, work, moment - since
                )
        if stalled and self._who_waits is not None:
            log.warning("who waits for whom:\n%s", self._who_waits())
        return stalled
