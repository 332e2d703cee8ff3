"""Room: a learner without anything to learn from. In: time that passes. Out: a diagnosis, and at last an error."""

from __future__ import annotations

import logging

from sfactory.clock import Awake
from sfactory.errors import Starved
from sfactory.layout import ACTORS
from sfactory.shared.diagnosis import who_waits_for_whom
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import State, StatusBoard

_log = logging.getLogger(__name__)


class Starvation:
    """Told when waiting for a dataset begins, asked while none comes.

    Each time ``timeout_s`` have passed without one, it tells who waits for whom. If no actor has taken a step
    meanwhile, nothing will ever come: it raises. Slow environments are no reason to stop, nor is an actor that still
    makes or resets its envs for the first time: how long that may take is another's to say.
    """

    def __init__(self, timeout_s: float, status: StatusBoard, table: SlotTable, policy: int | None = None) -> None:
        """``timeout_s``: 0 never looks. ``policy``: whose datasets do not come, where there are several."""
        self._timeout_s, self._status, self._table, self._policy = timeout_s, status, table, policy
        self.begin()

    def begin(self) -> None:
        """Waiting begins, at the earliest now."""
        self._awake = Awake()
        self._steps = self._sampled()

    def look(self) -> None:
        """No dataset has come yet. Raises Starved if none will come."""
        if not self._timeout_s or self._awake.look() < self._timeout_s:
            return
        told = who_waits_for_whom(self._status, self._table)
        steps = self._sampled()
        text = f"no dataset to learn from for {self._timeout_s:g} s (--learner_starvation_timeout_sec)"
        if steps == self._steps and not self._booting():
            raise Starved(f"{text}, and no actor has taken a step meanwhile, so none will come\n{told}")
        taken = steps - self._steps
        meanwhile = f"actors have taken {taken} steps meanwhile" if taken else "actors still make or reset their envs"
        _log.warning("%s; %s, so training waits on%s\n%s", text, meanwhile, self._who_plays(), told)
        self.begin()

    def _who_plays(self) -> str:
        if self._policy is None:
            return ""
        return f"; --policy_mapping says how often policy {self._policy} plays, and --train_policies can leave it out"

    def _booting(self) -> bool:
        return any(state < State.RUNNING for state in self._status.values("state", ACTORS))

    def _sampled(self) -> int:
        return int(self._status.total("env_steps", ACTORS))
