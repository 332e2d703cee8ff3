"""A child process as main knows it, without a process."""

from __future__ import annotations

from sfactory.clock import now
from sfactory.shared.status import State, StatusRow, Stopwatch


class Child:
    """Its own process and stack file; its stack is there at once. ready: it gets ready while it is asked."""

    over, killed, is_stopped = True, False, False

    def __init__(self, name: str, row: StatusRow, age_s: float = 0.0, ready: bool = False) -> None:
        self.name, self.row, self.started_at, self._ready = name, row, now() - age_s, ready
        self.process = self.stack = self
        self.watch = Stopwatch(row)

    @property
    def state(self) -> State:
        return State(int(self.row.get("state")))

    def kill(self) -> None:
        self.killed = True

    def request(self, _process: object) -> Child:
        return self

    def where(self) -> str:
        if self._ready:
            self.row.set("state", State.RUNNING)
        return f"{self.name} hung here:\nFile env.py, line 7 in step\n{self.name}"
