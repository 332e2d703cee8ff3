"""Room: workers that stand still. In: stamps of the status board. Out: their stacks, their end; an error.

Whoever works on one thing for too long is asked where, and killed; the death is noticed as any other. Whoever waits
looks at the stop flag every BLOCK_S, and stamps its heartbeat: if it does not, it is stopped, or the lock of its ring
died with another process (NOTE [Who saves waits on no ring]). Of rings that are shared by all, nobody can be given
another one while the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from sfactory.clock import Deadline, now
from sfactory.errors import RingsLost
from sfactory.layout import is_actor, is_learner, is_policy_worker
from sfactory.run.crew import Child, Crew

_RING_S = 10.0  # of a wait that should take BLOCK_S
_STACK_S = 1.0
_PAUSE_S = 2.0  # between two looks: main itself was stopped, or starved, and so may all have been


class Hangs:
    """Asked at every beat. ``step_limit_s``: bound on one step of a worker; 0 is none."""

    def __init__(
        self,
        crew: Crew,
        step_limit_s: float,
        reset_limit_s: float,
        reading_since: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``reset_limit_s``: what is added while an env is reset or made anew.

        ``reading_since``: since when main has been at the ring of its reports; 0 if it is not.
        """
        self._crew, self._step_limit_s, self._reset_limit_s = crew, step_limit_s, reset_limit_s
        self._reading_since = reading_since
        self._asked: dict[str, Deadline] = {}
        self._hung: dict[str, str] = {}
        self._looked_at = self._awake_since = now()

    def look(self) -> RingsLost | None:
        """Ask who hangs, and kill who has been asked; the failure of this generation if a shared ring is locked."""
        moment = now()
        if moment - self._looked_at > _PAUSE_S:
            self._awake_since = moment
        self._looked_at = moment
        for child in self._crew.running():
            if is_learner(child.name):
                if (lost := self._look_at_learner(child, moment)) is not None:
                    return lost
            elif is_actor(child.name) or is_policy_worker(child.name):
                self._look_at(child, moment)
        since = self._reading_since()
        if since and self._seconds(since, moment) > _RING_S:
            return RingsLost("the ring of sf-main is locked by a process that was killed while it used it")
        return None

    def where(self, name: str) -> str | None:
        """Where and why ``name`` hung, if it was killed for that; asked once, after its death."""
        self._asked.pop(name, None)
        return self._hung.pop(name, None)

    def _look_at(self, child: Child, moment: float) -> None:
        if self._why(child, moment) is None:
            self._asked.pop(child.name, None)
        elif child.name not in self._hung and (stack := self._answer(child)) is not None:
            why = self._why(child, now())
            if why is not None:  # it has not gone on while it was asked
                self._hung[child.name] = f"{stack}\n{child.name} {why}"
                child.process.kill()

    def _look_at_learner(self, child: Child, moment: float) -> RingsLost | None:
        since = child.row.get("in_ring_since")
        if not since or self._seconds(since, moment) <= _RING_S:
            self._asked.pop(child.name, None)
            return None
        stack = self._answer(child)
        if stack is None:
            return None
        return RingsLost(
            f"{stack}\n{child.name} uses a ring that is locked by a process that was killed while it used it"
        )

    def _answer(self, child: Child) -> str | None:
        """Ask a child where it hangs, once; its stack, or that there is none, when it has had its time."""
        if child.name not in self._asked:
            child.stack.ask(child.process)
            self._asked[child.name] = Deadline(_STACK_S)
            return None
        return child.where() if child.stack.read() or self._asked[child.name].passed else None

    def _why(self, child: Child, moment: float) -> str | None:
        row = child.row
        if not row.get("loop_since"):
            return None  # it works, but has not come to its loop
        since, heard = row.get("busy_since"), row.get("heartbeat")
        if since:
            resetting = row.get("resetting")
            limit_s = self._step_limit_s + (self._reset_limit_s if resetting else 0.0)
            if not self._step_limit_s or self._seconds(since, moment) <= limit_s:
                return None
            step = f"took longer than --step_timeout_seconds={self._step_limit_s:g} for one step"
            return f"{step} and --reset_timeout_seconds={self._reset_limit_s:g} for a reset" if resetting else step
        if self._seconds(heard, moment) <= _RING_S:
            return None
        return (
            f"did not come back from a wait for {_RING_S:g} s: it was stopped, or its ring is locked by a dead process"
        )

    def _seconds(self, since: float, moment: float) -> float:
        """How long it has been so, as far as main was awake."""
        return moment - max(since, self._awake_since)
