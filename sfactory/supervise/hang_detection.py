"""Finds processes that hang, asks them for their stacks, and ends them.

NOTE [Hangs]: a process that works on one thing for too long is asked for its stack and killed; its death is handled as
any other. A process that waits looks at the stop flag every BLOCK_S, and stamps its heartbeat: if it does not, it was
stopped, or the lock of its queue died with another process (NOTE [Saving waits for no ring]). Writing to a queue must
be instant, so a long write is treated the same way. If several processes write to the queue and it cannot be replaced,
all processes need new ones.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Callable, Iterable, Iterator

from sfactory.clock import BLOCK_S, TIMEOUTS, Awake
from sfactory.errors import ProcessesLost, WorkerDied
from sfactory.layout import is_actor, is_learner, is_policy_worker
from sfactory.process.stack_dump import STOPPED, StackRequest
from sfactory.shared.status import StatusBoard
from sfactory.supervise.monitors import STALL_S
from sfactory.supervise.process_group import ChildProcess, ProcessGroup
from sfactory.system.streams import unblocked

_RING_S = TIMEOUTS.ring


class HangDetector:
    """Asks children that take too long for their stacks. ``is_late``: whether a child takes too long."""

    def __init__(self, is_late: Callable[[ChildProcess], bool]) -> None:
        self._is_late = is_late
        self._requests: dict[str, StackRequest] = {}

    def hung(self, children: Iterable[ChildProcess]) -> Iterator[tuple[ChildProcess, str]]:
        """Yield each child that is late, with ``where`` of it, once it has answered or had its time to."""
        for child in children:
            if not self._is_late(child):
                self.forget(child.name)
            elif child.name not in self._requests:
                self._requests[child.name] = child.stack.request(child.process)
            elif self._requests[child.name].over:
                yield child, child.where()

    def forget(self, name: str) -> None:
        """Drop the request to a child that has ended or moved on."""
        self._requests.pop(name, None)


class WorkerHangs:
    """Kills actors, policy workers and evaluators that hang in a training run. See NOTE [Hangs]."""

    def __init__(
        self, process_group: ProcessGroup, step_limit_s: float, reset_limit_s: float, reading_since: Callable[[], float]
    ) -> None:
        """step_limit_s: bound on one step of a worker; 0: none. reset_limit_s: bound on making or resetting one env.

        reading_since: since when main has been reading the queue of its reports; 0 if it is not reading.
        """
        self._process_group, self._step_limit_s, self._reset_limit_s = process_group, step_limit_s, reset_limit_s
        self._reading_since = reading_since
        self._detector = HangDetector(lambda child: self._reason(child) is not None)
        self._killed: dict[str, str] = {}  # where and why
        self._awake = Awake()
        self._seen: dict[tuple[str, str], tuple[float, float]] = {}  # stamps, and when they were new, in time awake

    def look(self) -> ProcessesLost | None:
        """Called at every beat; returns the failure of all processes if a queue is locked that they share."""
        self._awake.look()
        for child, where in self._detector.hung(self._process_group.running()):
            if child.name in self._killed:
                continue
            reason = f"{where} {self._reason(child)}"
            if self._is_at_ring(child) and not is_policy_worker(child.name):
                return ProcessesLost(reason)
            self._killed[child.name] = reason
            child.process.kill()
        if self._seconds("sf-main", "reading", self._reading_since()) > _RING_S:
            return ProcessesLost(f"sf-main {self._at_locked_ring()}")
        return None

    def where(self, name: str) -> str | None:
        """Where and why ``name`` hung, if it was killed for that; to be called once, after its death."""
        self._detector.forget(name)
        return self._killed.pop(name, None)

    def _is_at_ring(self, child: ChildProcess) -> bool:
        return self._seconds(child.name, "ring", child.row.get("in_ring_since")) > _RING_S

    def _reason(self, child: ChildProcess) -> str | None:
        """What a worker does for too long; None if nothing. A learner may take as long as it wants for an update."""
        row = child.row
        if self._is_at_ring(child):
            return self._at_locked_ring(child)
        if is_learner(child.name) or not row.get("loop_since"):
            return None  # it has not come to its loop yet
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
        return self._at_locked_ring(child)

    def _at_locked_ring(self, child: ChildProcess | None = None) -> str:
        """What is said of ``child``, or main: who keeps its ring locked, unless it is stopped itself."""
        text = f"did not leave a ring for {_RING_S:g} s"
        stopped = [other.name for other in self._process_group.running() if other.is_stopped]
        if child is not None and child.name in stopped:
            return text
        holder = f"{stopped[0]}, which is {STOPPED}" if stopped else "a process that was killed while it used it"
        return f"{text}: it is locked by {holder}"

    def _seconds(self, name: str, what: str, stamp: float) -> float:
        """How long main has seen this stamp of a process, in time awake; 0 without a stamp."""
        if not stamp:
            return 0.0
        seen = self._seen.get((name, what))
        if seen is None or seen[0] != stamp:
            self._seen[name, what] = seen = stamp, self._awake.seconds
        return self._awake.seconds - seen[1]


class BenchmarkHangs:
    """Ends a measurement in which an actor hangs, which would measure the other actors only."""

    def __init__(self, process_group: ProcessGroup, env: str, limit_s: float) -> None:
        """``limit_s``: ``--reset_timeout_seconds``, since a step may include a reset. ``env``: for the error."""
        self._process_group, self._env, self._limit_s = process_group, env, limit_s
        self._detector = HangDetector(self._is_late)
        self._awake = Awake()

    def look(self) -> WorkerDied | None:
        """Called at every beat; returns the failure of the measurement, if any."""
        self._awake.look()
        for child, where in self._detector.hung(self._process_group.running()):
            cause = "" if child.is_stopped else ": the environment hangs, or is too slow"
            return WorkerDied(
                f"{where} was busy with one step of --env={self._env} for longer than "
                f"--reset_timeout_seconds={self._limit_s:g}, so nothing was measured{cause}"
            )
        return None

    def _is_late(self, child: ChildProcess) -> bool:
        since = child.row.get("busy_since")
        return is_actor(child.name) and bool(since) and self._awake.since(since) > self._limit_s


_LOOK_S = min(STALL_S / 10, BLOCK_S)
_JOIN_S = 5.0


class SerialHangWatch:
    """Context of a serial run: writes all stacks to stderr after STALL_S without progress on the status board.

    Steps, heartbeats and work that begins are progress. A C thread, which needs no lock of the interpreter, writes the
    stacks; its timer is restarted at every progress. awake: time in which the process was not stopped.
    """

    def __init__(self, status: StatusBoard) -> None:
        self._status = status
        self.awake = Awake()
        self._lock = threading.Lock()
        self._paused = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="hang-watch", daemon=True)

    def __enter__(self) -> SerialHangWatch:
        self._stderr = unblocked(2)  # otherwise the end would wait for the reader of the stacks
        self._restart_timer()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context of work that may take long without any progress, such as an update."""
        with self._lock:
            self._paused = True
            faulthandler.cancel_dump_traceback_later()
        try:
            yield
        finally:
            with self._lock:
                self._paused = False
                self._restart_timer()

    def _restart_timer(self) -> None:
        faulthandler.dump_traceback_later(STALL_S, file=self._stderr)

    def _look(self) -> None:
        before = self._progress()
        while not self._over.wait(_LOOK_S):
            self.awake.look()
            after = self._progress()
            with self._lock:
                if after != before and not self._paused:
                    self._restart_timer()
            before = after

    def _progress(self) -> list[float]:
        return self._status.values("env_steps", "") + self._status.values("heartbeat", "")
