"""Room: workers that stand still. In: stamps of the status board. Out: their stacks, their end; an error.

Whoever works on one thing for too long is asked where, and killed; the death is noticed as any other. Whoever waits
looks at the stop flag every BLOCK_S, and stamps its heartbeat: if it does not, it is stopped, or the lock of its ring
died with another process (NOTE [Saving waits for no ring]). So it is with who writes to a ring, which takes no time.
Of rings that several write to and nobody can exchange, all processes need new ones.

Room: an end to what hangs while it is measured. In: a crew that works. Out: an error that names who, and where.

In a run that trains whoever hangs is replaced (see Hangs), and the run goes on. A measurement would give a figure of
those that do not hang, or none at all.

Room: what halts a run in one process. In: its status board. Out: on stderr, the stacks of one that stands still.

In a parallel run main sees it from outside. Here the same process does everything, so a C thread is set to write the
stacks after STALL_S, which needs no lock of the interpreter, and is set anew as long as the board shows progress.
"""

from __future__ import annotations

import contextlib
import faulthandler
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from sfactory.clock import Awake, Deadline, now
from sfactory.errors import RingsLost, WorkerDied
from sfactory.layout import is_actor, is_learner, is_policy_worker
from sfactory.shared.status import StatusBoard
from sfactory.supervise.monitors import STALL_S
from sfactory.supervise.process_group import ChildProcess, ProcessGroup
from sfactory.timeouts import TIMEOUTS

_RING_S = TIMEOUTS.ring
_STACK_S = 1.0
_LOCKED = "uses a ring that is locked by a process that was killed while it used it"


class HangDetector:
    """Asked at every beat. ``step_limit_s``: bound on one step of a worker; 0 is none."""

    def __init__(
        self,
        process_group: ProcessGroup,
        step_limit_s: float,
        reset_limit_s: float,
        reading_since: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``reset_limit_s``: bound on one reset, or one making anew, of an env.

        ``reading_since``: since when main has been at the ring of its reports; 0 if it is not.
        """
        self._process_group, self._step_limit_s, self._reset_limit_s = process_group, step_limit_s, reset_limit_s
        self._reading_since = reading_since
        self._asked: dict[str, Deadline] = {}
        self._hung: dict[str, str] = {}
        self._awake = Awake()
        self._seen: dict[tuple[str, str], tuple[float, float]] = {}  # stamps, and when, by that time, they were new

    def look(self) -> RingsLost | None:
        """Ask who hangs, and kill who has been asked; the failure of this generation if a shared ring is locked."""
        self._awake.look()
        for child in self._process_group.running():
            if (lost := self._look_at(child)) is not None:
                return lost
        if self._seconds("sf-main", "reading", self._reading_since()) > _RING_S:
            return RingsLost(f"sf-main {_LOCKED}")
        return None

    def where(self, name: str) -> str | None:
        """Where and why ``name`` hung, if it was killed for that; asked once, after its death."""
        self._asked.pop(name, None)
        return self._hung.pop(name, None)

    def _look_at(self, child: ChildProcess) -> RingsLost | None:
        at_ring = self._seconds(child.name, "ring", child.row.get("in_ring_since")) > _RING_S
        why = _LOCKED if at_ring else self._why(child)
        if why is None:
            self._asked.pop(child.name, None)
            return None
        stack = self._answer(child)
        if stack is None or child.name in self._hung:
            return None
        if at_ring and not is_policy_worker(child.name):
            return RingsLost(f"{stack}\n{child.name} {why}")
        self._hung[child.name] = f"{stack}\n{child.name} {why}"
        child.process.kill()
        return None

    def _answer(self, child: ChildProcess) -> str | None:
        """Ask a child where it hangs, once; its stack, or that there is none, when it has had its time."""
        if child.name not in self._asked:
            child.stack.ask(child.process)
            self._asked[child.name] = Deadline(_STACK_S)
            return None
        return child.where() if child.stack.read() or self._asked[child.name].passed else None

    def _why(self, child: ChildProcess) -> str | None:
        """What a worker does for too long; None if nothing. A learner may take as long as it wants for an update."""
        row = child.row
        if is_learner(child.name) or not (is_actor(child.name) or is_policy_worker(child.name)):
            return None
        if not row.get("loop_since"):
            return None  # it works, but has not come to its loop
        busy_since = row.get("busy_since")
        seconds = self._seconds(child.name, "busy", busy_since)
        if busy_since and row.get("resetting"):
            limit = f"--reset_timeout_seconds={self._reset_limit_s:g} for one environment's reset"
            return f"took longer than {limit}" if seconds > self._reset_limit_s else None
        if busy_since:
            limit = f"--step_timeout_seconds={self._step_limit_s:g} for one step"
            return f"took longer than {limit}" if 0 < self._step_limit_s < seconds else None
        if self._seconds(child.name, "heartbeat", row.get("heartbeat")) <= _RING_S:
            return None
        return (
            f"did not come back from a wait for {_RING_S:g} s: it was stopped, or its ring is locked by a dead process"
        )

    def _seconds(self, name: str, what: str, stamp: float) -> float:
        """How long main, while it was awake, has seen this stamp of a process; 0 where there is none."""
        if not stamp:
            return 0.0
        seen = self._seen.get((name, what))
        if seen is None or seen[0] != stamp:
            self._seen[name, what] = seen = stamp, self._awake.seconds
        return self._awake.seconds - seen[1]


_STACK_S = 1.0


class BenchmarkHangLimit:
    """Asked at every beat whether an actor that works has been busy with one thing for longer than ``limit_s``."""

    def __init__(self, process_group: ProcessGroup, env: str, limit_s: float) -> None:
        """``env``: its name, for the error; ``limit_s`` is ``--reset_timeout_seconds``: a step may hold a reset."""
        self._process_group, self._env, self._limit_s = process_group, env, limit_s
        self._asked: dict[str, tuple[float, Deadline]] = {}  # since when it hangs, and how long its answer may take

    def look(self) -> WorkerDied | None:
        """The failure of the measurement, once somebody hangs and has been asked where."""
        for child in self._process_group.running():
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

    def _failure(self, child: ChildProcess) -> WorkerDied:
        return WorkerDied(
            f"{child.where()}\n{child.name} was busy with one step of --env={self._env} for longer than "
            f"--reset_timeout_seconds={self._limit_s:g}, so nothing was measured: the environment hangs, or is too slow"
        )


_LOOK_S = STALL_S / 10
_JOIN_S = 5.0


class SerialHangWatch:
    """Context in which a halt of STALL_S has the stacks written; work begun, steps and heartbeats are progress."""

    def __init__(self, status: StatusBoard) -> None:
        self._status = status
        self._lock = threading.Lock()
        self._paused = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="hang-watch", daemon=True)

    def __enter__(self) -> SerialHangWatch:
        faulthandler.dump_traceback_later(STALL_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)
        faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside may take long without any progress, such as an update."""
        with self._lock:
            self._paused = True
            faulthandler.cancel_dump_traceback_later()
        try:
            yield
        finally:
            with self._lock:
                self._paused = False
                faulthandler.dump_traceback_later(STALL_S)

    def _look(self) -> None:
        before = self._progress()
        while not self._over.wait(_LOOK_S):
            after = self._progress()
            with self._lock:
                if after != before and not self._paused:
                    faulthandler.dump_traceback_later(STALL_S)
            before = after

    def _progress(self) -> list[float]:
        return self._status.values("env_steps", "") + self._status.values("heartbeat", "")
