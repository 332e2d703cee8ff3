"""Supervises the processes of a run until all of them have ended.

One loop waits for deaths, signals and beats at once. A stop is ordered through Control; processes that have not ended
when the grace period is over are killed, so that the run always ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sfactory.clock import SAVE_MOST_S, TIMEOUTS, Deadline, now
from sfactory.errors import CannotSaveError, SFactoryError
from sfactory.layout import LEARNERS, is_actor, is_evaluator, is_learner
from sfactory.process.signals import Interrupts
from sfactory.shared.control import Control, Stop
from sfactory.shared.status import State, StatusBoard
from sfactory.supervise.hang_detection import WorkerHangs
from sfactory.supervise.process_group import ProcessExit, ProcessGroup
from sfactory.supervise.restarts import StartupMonitor, WorkerReplacement

log = logging.getLogger(__name__)

BEAT_S = 0.25
_SAVE_GRACE_S = TIMEOUTS.save_grace
_STOP_GRACE_S = 3.0


class Supervisor:
    """Watches a group of processes until none is left.

    failure: the first fault, if any. done: every learner reached its limit, or a beat ended the run.
    """

    def __init__(
        self,
        process_group: ProcessGroup,
        control: Control,
        status: StatusBoard,
        interrupts: Interrupts,
        boot_limit_s: float,
        saves: bool = True,
        replacement: WorkerReplacement | None = None,
        hangs: WorkerHangs | None = None,
    ) -> None:
        """boot_limit_s: see StartupMonitor. saves: whether learners save at a stop; those of a measurement do not.

        replacement: without one, every death ends the run. hangs: without one, hangs are not detected.
        """
        self._process_group, self._control, self._status, self._interrupts = process_group, control, status, interrupts
        self._stop = Stop.SAVE if saves else Stop.NOW
        self._boot = StartupMonitor(process_group, status, boot_limit_s)
        self._replacement, self._hangs = replacement, hangs
        self._grace: Deadline | None = None
        self._stop_at = 0.0  # when a stop was ordered
        self._next_beat = now() + BEAT_S
        self.failure: SFactoryError | None = None
        self.done = False

    def run(self, on_beat: Callable[[], bool]) -> None:
        """Supervise to the end. ``on_beat`` is called every BEAT_S; True from it ends the run as done.

        CannotSaveError from it ends the run at once.
        """
        # The handler itself orders the stop: main may be waiting for a disk, an observer or the reader of its stderr.
        self._interrupts.on_first = lambda: self._control.order_stop(self._stop)
        try:
            self._supervise(on_beat)
        finally:
            self._interrupts.on_first = None

    def _supervise(self, on_beat: Callable[[], bool]) -> None:
        while self.turn(BEAT_S, on_beat):
            pass

    def turn(self, most_s: float, on_beat: Callable[[], bool] = lambda: False) -> bool:
        """Wait for deaths, signals or the next beat, ``most_s`` seconds at most; False once no process is left.

        For callers that do other work between turns, and look at ``failure``; otherwise ``run``.
        """
        self._fail_with_group()
        if not self._process_group.alive:
            return False
        left = max(0.0, self._next_beat - now())
        deaths = self._process_group.wait(self._interrupts.wake_fd, min(most_s, left))
        self._fail_with_group()  # before the deaths: they are not the cause if the fork server has ended
        for death in deaths:
            self._on_death(death)
        self._interrupts.drain()
        self._on_signals()
        if now() >= self._next_beat:
            self._next_beat = now() + BEAT_S
            try:
                if on_beat() and not self._control.stopping:
                    self.done = True
                    self._order(self._stop)
            except CannotSaveError as error:
                self._fail(self.failure or error, Stop.NOW)
            self._check()
        if self._grace is not None and self._grace.passed and not self._may_save_longer():
            self._kill_rest()
        return True

    def stop(self) -> None:
        """End all processes, for callers of ``turn``."""
        self._order(Stop.NOW)
        self._supervise(lambda: False)

    def _on_death(self, death: ProcessExit) -> None:
        is_last_learner = is_learner(death.name) and not any(map(is_learner, self._process_group.alive))
        if is_last_learner and self._grace is not None:
            self._grace = Deadline(min(self._grace.left, _STOP_GRACE_S))  # nothing is left to be saved
        if is_learner(death.name) and death.exit_code == 0 and self._status.row(death.name).get("state") == State.DONE:
            if is_last_learner:
                self.done = not self._control.stopping or self.done
                self._order(Stop.NOW)
            return
        if self._control.stopping and death.exit_code == 0:
            return
        if self.failure is not None:
            log.error("%s, while the run was being stopped", death.cause)  # the first one is the run's failure
            return
        replaceable = self._replacement is not None and self._replacement.is_for(death)
        if self._control.stopping and (replaceable or self._boot.may_be_tried_again(death)):
            log.warning("%s, while the run was being stopped", death.cause)
            return  # without the stop it would have been replaced
        failure = death.as_error() if self._control.stopping else self._after(death)
        self._fail(failure, Stop.NOW if is_last_learner else Stop.SAVE)

    def _after(self, death: ProcessExit) -> SFactoryError | None:
        """Replace the process that died; returns the failure of the run if that is not possible."""
        if self._replacement is None or not self._replacement.is_for(death):
            return self._boot.after(death)
        self._boot.forget(death.name)
        return self._replacement.after(death, self._hangs.where(death.name) if self._hangs is not None else None)

    def _on_signals(self) -> None:
        count = self._interrupts.count
        if count == 1 and self._grace is None:
            if self._stop is Stop.SAVE:
                log.info("%s", self._interrupts.announcement)
            self._order(self._stop)
        if count >= 2:
            self._order(Stop.NOW)
            self._process_group.kill()

    def _check(self) -> None:
        if not self._control.stopping:
            self._fail(self._boot.look(), Stop.SAVE)
        # One of several learners that is done keeps freeing slots, so that the others can continue.
        learners = [self._status.row(name) for name in self._status.names if is_learner(name)]
        if not self._control.stopping and all(row.get("state") == State.DONE for row in learners):
            self.done = True
            self._order(Stop.NOW)
        if not self._control.stopping and self._hangs is not None:
            self._fail(self._hangs.look(), Stop.SAVE)

    def _fail_with_group(self) -> None:
        if not self._control.stopping:
            self._fail(self._process_group.failure, Stop.SAVE)

    def _fail(self, failure: SFactoryError | None, stop: Stop) -> None:
        if failure is not None:
            self.failure = failure
            self._order(stop)

    def _order(self, stop: Stop) -> None:
        if self._grace is not None and stop <= self._control.stop:
            return
        self._control.order_stop(stop)
        self._stop_at = now()
        self._grace = Deadline(self._save_grace_s() if stop is Stop.SAVE else _STOP_GRACE_S)

    def _save_grace_s(self) -> float:
        """Longer where updates or saves have taken long: a learner saves once its update is over, and often twice."""
        updates, saves = (self._status.values(field, LEARNERS) for field in ("update_s", "save_s"))
        slowest = max((update + save for update, save in zip(updates, saves, strict=True)), default=0.0)
        return min(_SAVE_GRACE_S + 2 * slowest, SAVE_MOST_S)  # a second signal ends the run at once

    def _may_save_longer(self) -> bool:
        """Whether learners save, or have saved since the stop, and slowly: how slow storage is shows only then."""
        learners = [*filter(is_learner, self._process_group.alive)]
        if self._control.stop is not Stop.SAVE or not learners:
            return False
        saving = any(self._status.row(name).get("saving_since") for name in learners)
        return now() - self._stop_at < (SAVE_MOST_S if saving else self._save_grace_s())

    def _kill_rest(self) -> None:
        killed = self._process_group.kill()
        waited_s = now() - self._stop_at
        with_envs = [name for name in killed if is_actor(name) or is_evaluator(name)]
        if with_envs:
            log.warning(
                "killed, as they had not ended %.0f s after the stop: %s; if a call of an env, such as step() or "
                "close(), takes longer, it was cut off",
                waited_s,
                ", ".join(with_envs),
            )
        # One that was still starting had learned nothing, and one that is DONE has saved.
        learners = [
            name for name in killed if is_learner(name) and self._status.row(name).get("state") == State.RUNNING
        ]
        if learners and self._control.stop is Stop.SAVE:
            stands = any(self._status.row(name).get("saved_env_steps") for name in learners)
            saved = "the last checkpoint stands" if stands else "this session has saved none"
            error = CannotSaveError(
                f"{', '.join(learners)} had not saved {waited_s:.0f} s after the stop; {saved}. An update "
                "that takes long (--batch_size) delays a stop, and so does slow storage"
            )
            if self.failure is None:
                self.failure = error
            else:
                log.error("%s", error)
