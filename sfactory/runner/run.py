"""Trains, and restarts all processes from the newest checkpoint where no single one can be replaced.

That is so if a learner fails and ``--max_restarts`` allows it, if one of several learners is killed, if a dead worker
leaves a queue locked, and if the fork server has ended. The restart resumes as a second command would.
"""

from __future__ import annotations

import dataclasses
import logging

from sfactory.errors import CannotSaveError, CheckpointError, ExitCode, LearnerDied, ProcessesLost
from sfactory.experiment.resume import Resumed
from sfactory.experiment.summary import Outcome
from sfactory.runner.context import Executor, RunContext
from sfactory.runner.parallel import ParallelExecutor
from sfactory.runner.resident import ResidentExecutor
from sfactory.runner.serial import SerialExecutor
from sfactory.supervise.restarts import RestartBudget

_log = logging.getLogger(__name__)


def run_with_restarts(context: RunContext) -> Outcome:
    """Train until a limit, a signal, or a fault for which no restart is left."""
    executor: type[Executor] = SerialExecutor if context.config.run.serial_mode else ParallelExecutor
    if context.plan.layout.resident:
        executor = ResidentExecutor
    while True:
        outcome = executor(context).run()
        budget = _restart_budget(context, outcome)
        if budget is None:
            return outcome
        if context.interrupts.count:
            if isinstance(outcome.error, ProcessesLost):  # a restart would have gone on, so this is an interruption
                summary = dataclasses.replace(outcome.summary, status="interrupted")
                return dataclasses.replace(outcome, status="interrupted", summary=summary, error=None)
            return outcome
        if not budget.spend():
            return outcome
        try:
            context = _resumed(context, outcome)
        except CheckpointError as error:
            _log.error("the processes cannot be restarted: %s", error)
            return outcome
        _log.error(
            "%s\nall processes are restarted from the checkpoint at %d env steps (%s)",
            *(outcome.error, context.resumed.env_steps, budget),
        )


def _restart_budget(context: RunContext, outcome: Outcome) -> RestartBudget | None:
    """The budget that a restart is paid from; None if a restart would not help."""
    error = outcome.error
    if context.config.run.serial_mode or context.place.world > 1:  # torchrun --max-restarts restarts all ranks
        return None
    if isinstance(error, ProcessesLost):
        return context.worker_restarts
    if isinstance(error, LearnerDied) and error.was_killed and context.config.population.num_policies > 1:
        return context.worker_restarts
    # A run that diverged, or that cannot save or load, would fail in the same way again.
    if isinstance(error, LearnerDied) and error.exit_code is ExitCode.LEARNER:
        return context.run_restarts
    return None


def _resumed(context: RunContext, outcome: Outcome) -> RunContext:
    """The context of the restart; raises CheckpointError if there are checkpoints and none can be loaded."""
    config = context.config
    if outcome.saved_env_steps != context.resumed.env_steps:
        # This session has saved: resume from that, whichever kind of checkpoint the session itself resumed from.
        checkpoint = dataclasses.replace(config.checkpoint, load_checkpoint_kind="latest")
        config = dataclasses.replace(config, checkpoint=checkpoint)
    try:
        outcome.summary.write(context.run_dir.summary_path)  # the restart continues its counts
    except CannotSaveError as error:
        _log.error("%s", error)
    resumed = Resumed.from_checkpoint(context.run_dir, config) or Resumed()
    return dataclasses.replace(context, config=config, resumed=resumed, is_restart=True)
