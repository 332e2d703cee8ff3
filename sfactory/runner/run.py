"""Runs a training run from its first process to its summary, and restarts it from its newest checkpoint.

All processes are restarted where no single one can be replaced: after a learner's failure if ``--max_restarts`` allows
it, where one of several learners was killed, and where a worker that died left a queue that is locked forever. The
restart resumes from the newest checkpoint, as a second command would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging

from sfactory.errors import CannotSaveError, CheckpointError, ExitCode, LearnerDied, RingsLost
from sfactory.experiment.resume import Resumed
from sfactory.experiment.summary import Outcome
from sfactory.report.bottleneck import Advisor
from sfactory.report.observers import RunFacts
from sfactory.report.reporter import Reporter
from sfactory.runner.context import Executor, RunContext
from sfactory.runner.parallel import ParallelExecutor
from sfactory.runner.pbt_driver import PbtDriver
from sfactory.runner.serial import SerialExecutor
from sfactory.supervise.restarts import RestartBudget
from sfactory.supervise.shared_objects import SharedObjects

_log = logging.getLogger(__name__)


def run_with_restarts(context: RunContext) -> Outcome:
    """Train until a limit, a signal, or a fault for which no restart is left."""
    outcome = run_once(context)
    while (budget := _restart_budget(context, outcome)) is not None:
        if context.interrupts.count:
            # After lost queues the learner has saved, so this is an interruption. A learner's own failure stays one.
            return _interrupted(outcome) if isinstance(outcome.error, RingsLost) else outcome
        if not budget.spend():
            return outcome
        try:
            context = _resumed(context, outcome)
        except CheckpointError as error:
            _log.error("no other start is possible: %s", error)
            return outcome
        _log.error(
            "%s\nall processes are restarted from the checkpoint at %d env steps (%s)",
            *(outcome.error, context.resumed.env_steps, budget),
        )
        outcome = run_once(context)
    return outcome


def run_once(context: RunContext) -> Outcome:
    """Start the workers, train until a limit, a signal or a fault, and report how it ended."""
    config, plan, observers, resumed = context.config, context.plan, context.observers, context.resumed
    shared = SharedObjects(plan.spec, plan.layout, plan.weight_bytes, plan.is_shaped(config))
    if not context.is_restart:
        observers.begin(RunFacts(config, context.seed, context.run_dir.path, plan.spec, resumed.env_steps))
    advisor = None if config.run.serial_mode else Advisor(config, plan)
    reporter = Reporter(
        config, shared, context.run_dir, resumed, context.console, context.started_at, observers, advisor
    )
    pbt_driver = PbtDriver.of(
        config, context.seed, resumed, reporter.reports, shared, context.run_dir, plan.reward_shaping
    )
    make: type[Executor] = SerialExecutor if config.run.serial_mode else ParallelExecutor
    executor = make(context, shared, reporter, pbt_driver)
    with contextlib.closing(reporter):
        with executor.open():
            if not observers.over:
                executor.start()
                if not context.is_restart:
                    observers.on_start()
                executor.drive()
        return reporter.finish(executor.status, executor.failure)


def _restart_budget(context: RunContext, outcome: Outcome) -> RestartBudget | None:
    """The budget that a restart is paid from; None if a restart would not help."""
    error = outcome.error
    if context.config.run.serial_mode:
        return None
    if isinstance(error, RingsLost):
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
        outcome.summary.write(context.run_dir.summary_path)  # whose counts the restart continues
    except CannotSaveError as error:
        _log.error("%s", error)
    resumed = Resumed.from_checkpoint(context.run_dir, config) or Resumed()
    return dataclasses.replace(context, config=config, resumed=resumed, is_restart=True)


def _interrupted(outcome: Outcome) -> Outcome:
    summary = dataclasses.replace(outcome.summary, status="interrupted")
    return dataclasses.replace(outcome, status="interrupted", summary=summary, error=None)
