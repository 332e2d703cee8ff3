"""Room: children that do not work yet. In: their states and deaths. Out: actors started or replaced, or an error.

An actor that dies or hangs while its envs get their first reset is replaced: simulators fail then that would not a
moment later (a port that is taken, a licence server that is asked by all at once). So is one that is killed before
that. What raises earlier, while modules are imported and envs are made, would raise again, and ends the run.

Room: how many faults a run survives. In: one fault after another. Out: whether one more is forgiven.

Room: workers that die in mid-run. In: their deaths. Out: others in their place, or the error that ends the run.

Only a process that was ended from outside, or that ended itself without a word, is replaced: a signal, a crash of an
env's native code, a hang. One that raised has said why, and would raise again.
"""

from __future__ import annotations

import logging

from sfactory.clock import Deadline, now
from sfactory.errors import RingsLost, SFactoryError, WorkerDied
from sfactory.layout import is_actor, is_policy_worker
from sfactory.shared.status import State, StatusBoard
from sfactory.supervise.process_group import ChildProcess, ProcessExit, ProcessGroup
from sfactory.supervise.shared_objects import SharedObjects

log = logging.getLogger(__name__)

MAX_TRIES = 3
_STACK_S = 1.0  # an answer takes milliseconds, unless the machine is overloaded or the process stopped
_MIN_BOOT_S = 120.0  # before a child tells what it is doing: fork, imports, a checkpoint, the first weights


class StartupMonitor:
    """Gets a crew from started to RUNNING. Asked at every beat and after every death, until a stop is ordered.

    ``limit_s``: bound on making one env, and on one env's first reset.
    """

    def __init__(self, process_group: ProcessGroup, status: StatusBoard, limit_s: float) -> None:
        self._process_group, self._status, self._limit_s = process_group, status, limit_s
        self._asked: dict[str, Deadline] = {}  # children that were asked where they hang
        self._hung: dict[str, str] = {}  # stacks of actors that were killed because they hung
        self._tries: dict[str, int] = {}  # of a first reset, since the actor is that of now or took over

    def look(self) -> SFactoryError | None:
        """Start actors for which there is room, and deal with who takes too long; the failure of the run, if any."""
        for child in self._process_group.booting():
            if not self._is_late(child):
                self._asked.pop(child.name, None)
            elif child.name not in self._asked:
                child.stack.ask(child.process)
                self._asked[child.name] = Deadline(_STACK_S)
            elif child.stack.read() or self._asked[child.name].passed:
                failure = self._end(child)
                if failure is not None:
                    return failure
        self._process_group.start_actors()
        return None

    def _end(self, child: ChildProcess) -> WorkerDied | None:
        """Kill a child that is late, unless it has got ready after all; the failure of the run if that is one."""
        stack, state = child.where(), child.state  # the state last: whoever is RUNNING now is left alone
        if state >= State.RUNNING or child.name in self._hung:
            return None
        child.process.kill()  # nobody waits for its end; the death of an actor in a reset is noticed as any other
        if state is not State.RESETTING:
            return self._never_ready(child, stack)
        self._hung[child.name] = stack
        return None

    def may_be_tried_again(self, death: ProcessExit) -> bool:
        """True if it was an actor that died while its envs got their first reset, or that was killed before that."""
        state = self._status.row(death.name).get("state")
        killed = death.exit_code < 0 and death.name not in self._hung
        return is_actor(death.name) and (state == State.RESETTING or (state < State.RESETTING and killed))

    def after(self, death: ProcessExit) -> SFactoryError | None:
        """Replace an actor that died in a first reset; the failure of the run if it was no such death, or one more."""
        self._asked.pop(death.name, None)
        again = self.may_be_tried_again(death)
        stack = self._hung.pop(death.name, None)
        if not again:
            return death.as_error() if stack is None else WorkerDied(self._cause_of(death, stack))
        cause = self._cause_of(death, stack)
        tries = self._tries[death.name] = self._tries.get(death.name, 0) + 1
        if tries < MAX_TRIES:
            log.warning("%s; replaced (try %d of %d of its first reset)", cause, tries + 1, MAX_TRIES)
            self._process_group.replace(death.name)
            self._process_group.start_actors()
            return None
        traceback = f"{death.text.rstrip()}\n" if death.text else ""
        return WorkerDied(f"{traceback}{cause} (first reset, tried {tries} times)")

    def restart(self, name: str) -> None:
        """An actor that had worked is replaced: its first resets are a matter of their own."""
        self._tries.pop(name, None)
        self._asked.pop(name, None)
        self._hung.pop(name, None)

    def _cause_of(self, death: ProcessExit, stack: str | None) -> str:
        """How it ended, in the last line; before that, if it was killed because it hung, the ``stack`` of then."""
        if stack is None:
            return death.cause
        limit = f"--reset_timeout_seconds={self._limit_s:g}"
        return f"{stack}\n{death.name} took longer than {limit} for one environment's reset"

    def _is_late(self, child: ChildProcess) -> bool:
        since = child.row.get("busy_since")
        if is_actor(child.name) and since:
            return now() - since > self._limit_s
        return now() - child.started_at > self._boot_limit_s

    @property
    def _boot_limit_s(self) -> float:
        return max(_MIN_BOOT_S, self._limit_s)

    def _never_ready(self, child: ChildProcess, stack: str) -> WorkerDied:
        if is_actor(child.name) and child.row.get("busy_since"):
            why = (
                f"did not get ready within --reset_timeout_seconds={self._limit_s:g}: that long it was making one "
                "environment; if it needs longer, raise it"
            )
        else:
            why = (
                f"did not get ready within {self._boot_limit_s:g} s; if this machine only needs longer for imports, "
                f"the checkpoint and the first weights, raise --reset_timeout_seconds={self._limit_s:g} above that"
            )
        return WorkerDied(f"{stack}\n{child.name} {why}")


class RestartBudget:
    """Counts what was forgiven, up to ``most``; over all generations of a run, see ``RestartLoop``."""

    def __init__(self, flag: str, most: int) -> None:
        """``flag``: its name, for texts."""
        self._flag, self.most = flag, most
        self.spent = 0

    def spend(self) -> bool:
        """One more, if one is left; whether it was."""
        if self.spent >= self.most:
            return False
        self.spent += 1
        return True

    def __str__(self) -> str:
        return f"{self.spent} of --{self._flag}={self.most}"


class WorkerReplacement:
    """Has a new process take over from an actor or a policy worker that has died. See NOTE [Lives]."""

    def __init__(self, process_group: ProcessGroup, shared: SharedObjects, budget: RestartBudget) -> None:
        self._process_group, self._shared, self._budget = process_group, shared, budget

    def is_for(self, death: ProcessExit) -> bool:
        """Whether it was an actor that worked, or a policy worker, and did not say why it ended."""
        works = self._shared.status.row(death.name).get("state") == State.RUNNING
        return not death.text and (is_policy_worker(death.name) or (is_actor(death.name) and works))

    def after(self, death: ProcessExit, hung: str | None) -> SFactoryError | None:
        """Replace who died; the failure of the run if that cannot be. ``hung``: where, if it was killed for it."""
        name, cause = death.name, hung or death.cause
        inbox = self._shared.inbox_of(name)
        if not inbox.has_another:
            return RingsLost(f"{cause}, and no fresh ring is left for another process in its place")
        if not self._budget.spend():
            allowed = "none is replaced: --max_worker_restarts=0"
            if self._budget.most:
                allowed = f"{self._budget} were replaced before"
            return WorkerDied(f"{cause} ({allowed})")
        lost = self._take_back(self._shared.layout.actor_names.index(name)) if is_actor(name) else 0
        row = self._shared.status.row(name)
        row.add("discarded_steps", lost)
        row.add("restarts", 1)
        inbox.begin_next_incarnation()
        log.warning("%s; replaced (%s), %d steps are lost with it", cause, self._budget, lost)
        self._process_group.replace(name)
        self._process_group.start_actors()
        return None

    def _take_back(self, actor: int) -> int:
        """What a dead actor was at is nobody's any more; returns the env steps that are lost so."""
        self._shared.settle_steps(actor)
        self._shared.forget(actor)
        return self._shared.table.reclaim(actor)
