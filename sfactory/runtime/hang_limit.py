"""Room: an end to what hangs while it is measured. In: a crew that works. Out: an error that names who, and where.

In a run that trains whoever hangs is replaced (see Hangs), and the run goes on. A measurement would give a figure of
those that do not hang, or none at all.
"""

from __future__ import annotations

from sfactory.clock import Deadline, now
from sfactory.errors import WorkerDied
from sfactory.layout import is_actor
from sfactory.runtime.crew import Child, Crew

_STACK_S = 1.0


class HangLimit:
    """Asked at every beat whether an actor that works has been busy with one thing for longer than ``limit_s``."""

    def __init__(self, crew: Crew, env: str, limit_s: float) -> None:
        """``env``: its name, for the error; ``limit_s`` is ``--reset_timeout_seconds``: a step may hold a reset."""
        self._crew, self._env, self._limit_s = crew, env, limit_s
        self._asked: dict[str, tuple[float, Deadline]] = {}  # since when it hangs, and how long its answer may take

    def look(self) -> WorkerDied | None:
        """The failure of the measurement, once somebody hangs and has been asked where."""
        for child in self._crew.running():
            since = child.row.get("busy_since")
            if not is_actor(child.name) or not since or now() - since <= self._limit_s:
                continue
            asked = self._asked.get(child.name)
            if asked is None or asked[0] != since:
                child.stack.ask(child.process)
                self._asked[child.name] = since, Deadline(_STACK_S)
            elif child.stack.read() or asked[1].passed:
                return self._failure(child)
        return None

    def _failure(self, child: Child) -> WorkerDied:
        return WorkerDied(
            f"{child.where()}\n{child.name} was busy with one step of --env={self._env} for longer than "
            f"--reset_timeout_seconds={self._limit_s:g}, so nothing was measured: the environment hangs, or is too slow"
        )
