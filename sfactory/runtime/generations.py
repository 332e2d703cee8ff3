"""Room: a run that begins anew from its newest checkpoint. In: a resolved configuration. Out: files, and an Outcome.

A generation is all processes of a run with all that they share. Where no single process can be replaced, the next
generation starts where the newest checkpoint stands, as a resumed session does, within the same command: after a
learner's failure if ``--max_restarts`` allows, where one of several learners was killed, and where a worker that died
left rings that nobody can use any more.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from sfactory.config.schema import Config
from sfactory.errors import CannotSaveError, CheckpointError, ExitCode, LearnerDied, RingsLost
from sfactory.runtime.budget import Budget
from sfactory.runtime.nursery import Nursery
from sfactory.runtime.outcome import Outcome
from sfactory.runtime.parallel import ParallelRun
from sfactory.runtime.resumed import Resumed
from sfactory.runtime.rundir import RunDir
from sfactory.runtime.signals import Interrupts

_log = logging.getLogger(__name__)

Make = Callable[[Config, Resumed | None, Budget], ParallelRun]


class Generations:
    """Runs one generation after another. ``make``: the next one, which goes on from what is saved."""

    def __init__(self, config: Config, rundir: RunDir, make: Make) -> None:
        self._config, self._rundir, self._make = config, rundir, make
        self._replaced = Budget("max_worker_restarts", config.sampling.max_worker_restarts)
        self._restarted = Budget("max_restarts", config.run.max_restarts)

    def run(
        self, resumed: Resumed | None, nursery: Nursery, interrupts: Interrupts, process_started_at: float
    ) -> Outcome:
        """Train until a limit, a signal, or a fault that no restart is left for."""
        outcome = self._make(self._config, resumed, self._replaced).run(nursery, interrupts, process_started_at)
        while (budget := self._budget_for(outcome)) is not None:
            if interrupts.count:
                # Of lost rings the learner has saved; what it failed with itself stays the end of the run.
                return _interrupted(outcome) if isinstance(outcome.error, RingsLost) else outcome
            if not budget.spend():
                return outcome
            config = self._config_after(outcome, resumed)
            try:
                resumed = self._saved(config, outcome)
            except CheckpointError as error:
                _log.error("no other start is possible: %s", error)
                return outcome
            _log.error(
                "%s\nall processes start anew from the checkpoint at %d env steps (%s)",
                outcome.error,
                0 if resumed is None else resumed.env_steps,
                budget,
            )
            run = self._make(config, resumed, self._replaced)
            outcome = run.run(nursery, interrupts, process_started_at, first=False)
        return outcome

    def _budget_for(self, outcome: Outcome) -> Budget | None:
        """Which budget a restart would be paid from; None if it would not help."""
        if isinstance(outcome.error, RingsLost):
            return self._replaced
        if isinstance(outcome.error, LearnerDied) and outcome.error.was_killed and self._has_others:
            return self._replaced
        # What diverged, or cannot be saved or loaded, would again.
        if isinstance(outcome.error, LearnerDied) and outcome.error.exit_code is ExitCode.LEARNER:
            return self._restarted
        return None

    @property
    def _has_others(self) -> bool:
        """Whether there are policies that a learner's death is no reason to end."""
        return self._config.population.num_policies > 1

    def _config_after(self, outcome: Outcome, resumed: Resumed | None) -> Config:
        """Once this session has saved, the next generation goes on from that, whatever the session went on from."""
        if outcome.saved_env_steps == (0 if resumed is None else resumed.env_steps):
            return self._config
        checkpoint = dataclasses.replace(self._config.checkpoint, load_checkpoint_kind="latest")
        self._config = dataclasses.replace(self._config, checkpoint=checkpoint)
        return self._config

    def _saved(self, config: Config, outcome: Outcome) -> Resumed | None:
        """Where the next generation goes on; raises CheckpointError if there are checkpoints and none can be loaded."""
        try:
            outcome.summary.write(self._rundir.summary_path)  # what the next one counts on from
        except CannotSaveError as error:
            _log.error("%s", error)
        return Resumed.from_checkpoint(self._rundir, config)


def _interrupted(outcome: Outcome) -> Outcome:
    """The same run, which was told to end before the next generation began."""
    summary = dataclasses.replace(outcome.summary, status="interrupted")
    return dataclasses.replace(outcome, status="interrupted", summary=summary, error=None)
