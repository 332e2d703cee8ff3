"""Room: workers that die in mid-run. In: their deaths. Out: others in their place, or the error that ends the run.

Only a process that was ended from outside, or that ended itself without a word, is replaced: a signal, a crash of an
env's native code, a hang. One that raised has said why, and would raise again.
"""

from __future__ import annotations

import logging

from sfactory.errors import RingsLost, SFactoryError, WorkerDied
from sfactory.layout import is_actor, is_policy_worker
from sfactory.runtime.budget import Budget
from sfactory.runtime.crew import Crew, Death
from sfactory.runtime.wiring import Wiring
from sfactory.shared.status import State

log = logging.getLogger(__name__)


class Replacement:
    """Has a new process take over from an actor or a policy worker that has died. See NOTE [Lives]."""

    def __init__(self, crew: Crew, wiring: Wiring, budget: Budget) -> None:
        self._crew, self._wiring, self._budget = crew, wiring, budget

    def is_for(self, death: Death) -> bool:
        """Whether it was an actor that worked, or a policy worker, and did not say why it ended."""
        works = self._wiring.status.row(death.name).get("state") == State.RUNNING
        return not death.text and (is_policy_worker(death.name) or (is_actor(death.name) and works))

    def after(self, death: Death, hung: str | None) -> SFactoryError | None:
        """Replace who died; the failure of the run if that cannot be. ``hung``: where, if it was killed for it."""
        name, cause = death.name, hung or death.cause
        inbox = self._wiring.inbox_of(name)
        if not inbox.has_another:
            return RingsLost(f"{cause}, and no fresh ring is left for another process in its place")
        if not self._budget.spend():
            allowed = "none is replaced: --max_worker_restarts=0"
            if self._budget.most:
                allowed = f"{self._budget} were replaced before"
            return WorkerDied(f"{cause} ({allowed})")
        lost = self._take_back(self._wiring.layout.actor_names.index(name)) if is_actor(name) else 0
        row = self._wiring.status.row(name)
        row.add("discarded_steps", lost)
        row.add("restarts", 1)
        inbox.begin_next_life()
        log.warning("%s; replaced (%s), %d steps are lost with it", cause, self._budget, lost)
        self._crew.replace(name)
        self._crew.start_actors()
        return None

    def _take_back(self, actor: int) -> int:
        """What a dead actor was at is nobody's any more; returns the env steps that are lost so."""
        self._wiring.settle_steps(actor)
        self._wiring.forget(actor)
        return self._wiring.table.reclaim(actor)
