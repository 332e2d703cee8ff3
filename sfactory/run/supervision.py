"""Room: the life of a run from started children to their end. In: deaths, signals, beats. Out: how it ended.

One loop waits for all of them at once. A stop is ordered through Control; whoever has not ended when its
grace is over is killed, so that the run always ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sfactory.clock import Deadline, now
from sfactory.errors import CannotSaveError, SFactoryError, WorkerDied
from sfactory.run.crew import Crew, Death
from sfactory.run.signals import Interrupts
from sfactory.shared.control import Control, Stop
from sfactory.shared.status import State, StatusBoard

log = logging.getLogger(__name__)

BEAT_S = 0.25
_SAVE_GRACE_S = 8.0
_STOP_GRACE_S = 3.0


class Supervision:
    """Watches a crew until nobody is left.

    failure: the first fault, if any. done: every learner reached its limit, or ``finished`` said so.
    """

    def __init__(
        self,
        crew: Crew,
        control: Control,
        status: StatusBoard,
        interrupts: Interrupts,
        boot_limit_s: float,
    ) -> None:
        self._crew, self._control, self._status, self._interrupts = crew, control, status, interrupts
        self._boot_deadline, self._boot_limit_s = Deadline(boot_limit_s), boot_limit_s
        self._grace: Deadline | None = None
        self.failure: SFactoryError | None = None
        self.done = False

    def run(self, on_beat: Callable[[], bool]) -> None:
        """Supervise to the end. ``on_beat`` is called every BEAT_S; True from it ends the run as done."""
        next_beat = now() + BEAT_S
        while self._crew.alive:
            for death in self._crew.wait(self._interrupts.wake_fd, max(0.0, next_beat - now())):
                self._on_death(death)
            self._interrupts.drain()
            self._on_signals()
            if now() >= next_beat:
                next_beat = now() + BEAT_S
                if on_beat() and not self._control.stopping:
                    self.done = True
                    self._order(Stop.SAVE)
                self._check_boot()
            if self._grace is not None and self._grace.passed:
                self._kill_rest()

    def _on_death(self, death: Death) -> None:
        if death.is_learner and death.exit_code == 0 and self._status.row(death.name).get("state") == State.DONE:
            if not any(name.startswith("sf-learner") for name in self._crew.alive):
                self.done = not self._control.stopping or self.done
                self._order(Stop.NOW)
            return
        expected = self._control.stopping and death.exit_code == 0
        if expected or self.failure is not None:
            return
        self.failure = death.as_error()
        self._order(Stop.NOW if death.is_learner else Stop.SAVE)

    def _on_signals(self) -> None:
        count = self._interrupts.count
        if count == 1 and self._control.stop is Stop.NO:
            log.info("stopping and saving; a second signal ends the run at once, without saving")
            self._order(Stop.SAVE)
        if count >= 2:
            self._order(Stop.NOW)
            self._crew.kill()

    def _check_boot(self) -> None:
        if not self._boot_deadline.passed or self._control.stopping:
            return
        late = [name for name in self._crew.alive if self._status.row(name).get("state") < State.RUNNING]
        if late:
            self.failure = WorkerDied(
                f"{', '.join(late)} did not get ready within --reset_timeout_seconds={self._boot_limit_s:g}; if the "
                "environment needs longer to start, raise it"
            )
            self._order(Stop.NOW)

    def _order(self, stop: Stop) -> None:
        if stop <= self._control.stop:
            return
        self._control.order_stop(stop)
        self._grace = Deadline(_SAVE_GRACE_S if stop is Stop.SAVE else _STOP_GRACE_S)

    def _kill_rest(self) -> None:
        killed = self._crew.kill()
        learners = [name for name in killed if name.startswith("sf-learner")]
        if learners and self.failure is None and self._control.stop is Stop.SAVE:
            self.failure = CannotSaveError(
                f"{', '.join(learners)} had not saved {_SAVE_GRACE_S:.0f} s after the stop; the last checkpoint stands"
            )
