"""Room: noticing that a process makes no headway. In: busy-since stamps of the status board. Out: warnings.

Room: how a run stands, told while it goes on. In: SIGUSR1, or who wants to know. Out: lines for people to read.

``kill -USR1 <pid of sf-main>``: every process with its state, the messages that wait for it, and its slots. Nobody is
asked and no lock is taken: what is shared is looked at, so that it can be told of a run in which everybody is stuck.

Room: a policy that a run waits for and that nobody plays. In: beats. Out: one warning about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from sfactory.clock import now
from sfactory.process.signals import Interrupts
from sfactory.shared.channel import Channel
from sfactory.shared.diagnosis import describe_processes
from sfactory.shared.status import State, StatusBoard
from sfactory.supervise.shared_objects import SharedObjects
from sfactory.timeouts import TIMEOUTS

log = logging.getLogger(__name__)

STALL_S = TIMEOUTS.stall
_WORK = {
    State.STARTING: "making one environment",
    State.RESETTING: "the first reset of one environment",
}


class StallWarnings:
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


_log = logging.getLogger(__name__)


class StatusDump:
    """Answers when it is asked; ``look`` is called at every beat."""

    def __init__(self, shared: SharedObjects) -> None:
        self._shared = shared

    def look(self, interrupts: Interrupts) -> None:
        """Tell who waits for whom if SIGUSR1 has come since the last time."""
        if interrupts.asked:
            interrupts.asked = False
            _log.info("who waits for whom (SIGUSR1):\n%s", self.text())

    def text(self) -> str:
        """A line for each process, main last."""
        shared = self._shared
        rings: list[Channel[Any]] = [
            *shared.to_learners,
            *shared.to_policies,
            *shared.to_actors,
        ]
        reports: list[Channel[Any]] = [shared.actors_to_main, *shared.learners_to_main]
        told = describe_processes(shared.status, shared.table, {ring.reader: ring.waiting for ring in rings})
        return f"{told}\n  sf-main: {sum(ring.waiting for ring in reports)} reports wait for it"


PATIENCE_S = TIMEOUTS.idle_policy


class IdlePolicyWarning:
    """Looked at in every beat, once some policies have learned enough and others have not."""

    def __init__(
        self, policies: Sequence[int], env_steps_of: Callable[[int], int], is_done: Callable[[int], bool]
    ) -> None:
        """``policies``: those that learn. ``env_steps_of``: how many each has learned from."""
        self._policies, self._env_steps_of, self._is_done = policies, env_steps_of, is_done
        self._seen: dict[int, tuple[int, float]] = {}  # steps, and since when there were as many
        self._told: set[int] = set()

    def look(self) -> None:
        """Warn of each policy, once, that has learned nothing for PATIENCE_S while others are done."""
        waiting = [policy for policy in self._policies if not self._is_done(policy)]
        if len(waiting) in (0, len(self._policies)):
            return
        for policy in waiting:
            steps, moment = self._env_steps_of(policy), now()
            known, since = self._seen.get(policy, (-1, moment))
            if steps != known:
                self._seen[policy] = steps, moment
            elif moment - since > PATIENCE_S and policy not in self._told:
                self._told.add(policy)
                _log.warning(
                    "the run waits for policy %d, which has learned from %d env steps and from none for %.0f s, while "
                    "others have reached their limit: who plays is up to --policy_mapping; --train_policies without it "
                    "would end the run now",
                    policy,
                    steps,
                    PATIENCE_S,
                )
