"""Warns about a run that makes no progress, and logs the state of all processes on request (SIGUSR1).

It only reads shared memory and takes no lock, so it works even if all processes are stuck.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from sfactory.clock import TIMEOUTS, Awake
from sfactory.layout import is_policy_worker
from sfactory.process.signals import Interrupts
from sfactory.process.stack_dump import STOPPED, is_stopped
from sfactory.shared.channel import Channel
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State, StatusBoard, describe_processes

_log = logging.getLogger(__name__)

STALL_S = TIMEOUTS.stall
_WORK = {State.STARTING: "making one environment", State.RESETTING: "the first reset of one environment"}


class StallWarnings:
    """Warns, once per stall, of each process that has worked on one thing for longer than STALL_S.

    ``waits``: describes what each process is waiting for; logged once after the warnings of a beat.
    """

    def __init__(self, status: StatusBoard, names: list[str], waits: Callable[[], str]) -> None:
        self._rows = {name: status.row(name) for name in names}
        self._waits = waits
        self._warned_of: dict[str, float] = {}
        self._awake = Awake()

    def look(self) -> list[str]:
        """Warn of new stalls; returns the names of the processes that have stalled."""
        self._awake.look()
        stalled = []
        for name, row in self._rows.items():
            since = row.get("busy_since")
            seconds = self._awake.since(since)
            if since and seconds > STALL_S and self._warned_of.get(name) != since:
                self._warned_of[name] = since
                stalled.append(name)
                work = _WORK.get(State(int(row.get("state"))), "one step")
                doubt = "is its device stuck?" if is_policy_worker(name) else "is its environment stuck?"
                if is_stopped(int(row.get("pid"))):
                    doubt = f"it is {STOPPED}"
                _log.warning("%s has been busy with %s for %.0f s; %s", name, work, seconds, doubt)
        if stalled:
            _log.warning("what each process is waiting for:\n%s", self._waits())
        return stalled


class StatusDump:
    """Logs state, messages and slots of every process on ``kill -USR1 <pid of sf-main>``."""

    def __init__(self, shared: SharedObjects) -> None:
        self._shared = shared

    def look(self, interrupts: Interrupts) -> None:
        """Called at every beat: log the dump if SIGUSR1 has come since the last time."""
        if interrupts.asked:
            interrupts.asked = False
            _log.info("what each process is waiting for (SIGUSR1):\n%s", self.text())

    def text(self) -> str:
        """One line per process, main last."""
        shared = self._shared
        rings: list[Channel[Any]] = [*shared.to_learners, *shared.to_policies, *shared.to_actors]
        reports: list[Channel[Any]] = [shared.actors_to_main, *shared.learners_to_main]
        processes = describe_processes(shared.status, shared.table, {ring.reader: ring.waiting for ring in rings})
        return f"{processes}\n  sf-main: {sum(ring.waiting for ring in reports)} reports wait for it"


PATIENCE_S = TIMEOUTS.idle_policy


class IdlePolicyWarning:
    """Warns if a policy gets no experience while the others have reached their limit; looks at every beat."""

    def __init__(
        self, policies: Sequence[int], env_steps_of: Callable[[int], int], is_done: Callable[[int], bool]
    ) -> None:
        """``policies``: those that learn. env_steps_of: how many env steps a policy has learned from."""
        self._policies, self._env_steps_of, self._is_done = policies, env_steps_of, is_done
        self._seen: dict[int, tuple[int, float]] = {}  # steps, and since when, in time awake, there were as many
        self._warned: set[int] = set()
        self._awake = Awake()

    def look(self) -> None:
        """Warn once of each policy that has learned nothing for PATIENCE_S while others are done."""
        moment = self._awake.look()
        waiting = [policy for policy in self._policies if not self._is_done(policy)]
        if len(waiting) in (0, len(self._policies)):
            return
        for policy in waiting:
            steps = self._env_steps_of(policy)
            known, since = self._seen.get(policy, (-1, moment))
            if steps != known:
                self._seen[policy] = steps, moment
            elif moment - since > PATIENCE_S and policy not in self._warned:
                self._warned.add(policy)
                _log.warning(
                    "the run waits for policy %d, which has learned from %d env steps and from none for %.0f s, while "
                    "others have reached their limit: --policy_mapping decides which policies play; --train_policies "
                    "without it would end the run now",
                    policy,
                    steps,
                    PATIENCE_S,
                )
