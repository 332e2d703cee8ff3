"""Replaces worker processes that die while they start or later in the run.

An actor that dies or hangs during the first reset of its envs, or is killed before, is replaced: simulators may fail
then for causes that pass (a port is taken, many ask a licence server at once); so is an evaluator that is killed while
it makes its env. Later, a process is replaced if it ended without a traceback: by a signal, a crash of native code, a
hang. One that raised otherwise would raise again.
"""

from __future__ import annotations

import logging

from sfactory.clock import Awake
from sfactory.errors import ProcessesLost, SFactoryError, WorkerDied
from sfactory.layout import is_actor, is_evaluator, is_policy_worker
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State, StatusBoard
from sfactory.supervise.hang_detection import HangDetector
from sfactory.supervise.process_group import ChildProcess, ProcessExit, ProcessGroup

log = logging.getLogger(__name__)

MAX_TRIES = 3
_MIN_BOOT_S = 120.0  # before a child reports its state: fork, imports, a checkpoint, the first weights


class StartupMonitor:
    """Gets processes from started to RUNNING. ``limit_s``: bound on making one env, and on its first reset."""

    def __init__(self, process_group: ProcessGroup, status: StatusBoard, limit_s: float) -> None:
        self._process_group, self._status, self._limit_s = process_group, status, limit_s
        self._boot_limit_s = max(_MIN_BOOT_S, limit_s)
        self._detector = HangDetector(self._is_late)
        self._hung: dict[str, str] = {}  # where actors were that were killed because they hung
        self._awake = Awake()
        self._tries: dict[str, int] = {}  # first resets of an actor that has not worked yet

    def look(self) -> SFactoryError | None:
        """Start actors that may start now, and end children that take too long; returns the failure, if any."""
        self._awake.look()
        for child, where in self._detector.hung(self._process_group.booting()):
            state = child.state  # read after the stack: a child that is RUNNING by now is left alone
            if state >= State.RUNNING or child.name in self._hung:
                continue
            child.process.kill()  # its end is not awaited; the death of an actor in a reset is noticed as any other
            if state is not State.RESETTING:
                return self._never_ready(child, where)
            self._hung[child.name] = where
        self._process_group.start_actors()
        return None

    def may_be_tried_again(self, death: ProcessExit) -> bool:
        """True for an actor that died during the first reset of its envs, or was killed before; see the module."""
        state = self._status.row(death.name).get("state")
        killed = death.exit_code < 0 and death.name not in self._hung
        early = state < State.RESETTING and killed
        return (is_actor(death.name) and (state == State.RESETTING or early)) or (is_evaluator(death.name) and early)

    def after(self, death: ProcessExit) -> SFactoryError | None:
        """Replace a process that may be tried again; returns the failure of the run if that is not possible."""
        name, cause, again = death.name, death.cause, self.may_be_tried_again(death)
        self._detector.forget(name)
        where = self._hung.pop(name, None)
        if where is not None:
            limit = f"--reset_timeout_seconds={self._limit_s:g}"
            cause = f"{where} took longer than {limit} for one environment's reset"
        if not again:
            return death.as_error() if where is None else WorkerDied(cause)
        tries = self._tries[name] = self._tries.get(name, 0) + 1
        if tries < MAX_TRIES:
            log.warning("%s; replaced (try %d of %d of its first reset)", cause, tries + 1, MAX_TRIES)
            self._process_group.replace(name)
            self._process_group.start_actors()
            return None
        traceback = f"{death.text.rstrip()}\n" if death.text else ""
        return WorkerDied(f"{traceback}{cause} (first reset, tried {tries} times)")

    def forget(self, name: str) -> None:
        """Forget the first resets of an actor that had worked and is replaced."""
        self._tries.pop(name, None)
        self._detector.forget(name)
        self._hung.pop(name, None)

    def _is_late(self, child: ChildProcess) -> bool:
        since = child.row.get("busy_since")
        if is_actor(child.name) and since:
            return self._awake.since(since) > self._limit_s
        return self._awake.since(child.started_at) > self._boot_limit_s

    def _never_ready(self, child: ChildProcess, where: str) -> WorkerDied:
        flag = f"--reset_timeout_seconds={self._limit_s:g}"
        if is_actor(child.name) and child.row.get("busy_since"):
            why = f"within {flag}: that long it was making one environment; if it needs longer, raise it"
        else:
            why = (
                f"within {self._boot_limit_s:g} s; if this machine only needs longer for imports, the checkpoint and "
                f"the first weights, raise {flag} above that"
            )
        return WorkerDied(f"{where} did not get ready {why}")


class RestartBudget:
    """Counts replacements of a session up to ``most``, over all of its restarts."""

    def __init__(self, flag: str, most: int) -> None:
        """``flag``: the flag that sets ``most``, for messages."""
        self._flag, self.most = flag, most
        self.spent = 0

    def spend(self) -> bool:
        """Count one more if one is left; returns whether it was."""
        if self.spent >= self.most:
            return False
        self.spent += 1
        return True

    def __str__(self) -> str:
        return f"{self.spent} of --{self._flag}={self.most}"


class WorkerReplacement:
    """Replaces actors, policy workers and evaluators that have died by new processes. See NOTE [Incarnations]."""

    def __init__(self, process_group: ProcessGroup, shared: SharedObjects, budget: RestartBudget) -> None:
        self._process_group, self._shared, self._budget = process_group, shared, budget

    def is_for(self, death: ProcessExit) -> bool:
        """Whether it was a policy worker, or an actor or evaluator that worked, and it left no traceback."""
        works = self._shared.status.row(death.name).get("state") == State.RUNNING
        has_envs = is_actor(death.name) or is_evaluator(death.name)
        return not death.text and (is_policy_worker(death.name) or (has_envs and works))

    def after(self, death: ProcessExit, hung: str | None) -> SFactoryError | None:
        """Replace the process; returns the failure of the run if it cannot be. ``hung``: where it hung, if so."""
        name, cause = death.name, hung or death.cause
        inbox = None if is_evaluator(name) else self._shared.inbox_of(name)
        if inbox is not None and not inbox.has_another:
            return ProcessesLost(f"{cause}, and no unused ring is left for its replacement")
        if not self._budget.spend():
            allowed = "none is replaced: --max_worker_restarts=0"
            if self._budget.most:
                allowed = f"{self._budget} were replaced before"
            return WorkerDied(f"{cause} ({allowed})")
        lost = self._reclaim(self._shared.layout.actor_names.index(name)) if is_actor(name) else 0
        row = self._shared.status.row(name)
        row.add("discarded_steps", lost)
        row.add("restarts", 1)
        if inbox is not None:
            inbox.begin_next_incarnation()
        log.warning("%s; replaced (%s), %d steps are lost with it", cause, self._budget, lost)
        self._process_group.replace(name)
        self._process_group.start_actors()
        return None

    def _reclaim(self, actor: int) -> int:
        """Free the slots that a dead actor was filling, and reset its states; returns the env steps that are lost."""
        self._shared.settle_steps(actor)
        for split in range(self._shared.layout.splits):
            for phase in range(2):
                self._shared.states.of(phase, actor, split)[:] = 0.0
        return self._shared.table.reclaim(actor)
