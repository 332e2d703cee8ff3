"""Holds what all parts of a training run work with, and the base class of parallel and serial runs."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass

from sfactory.config.schema import Config
from sfactory.errors import SFactoryError
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Outcome, Result
from sfactory.pbt.state import STATE_NAME
from sfactory.planning.plan import Plan
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.ranks.place import ONE_RANK, Place
from sfactory.report.bottleneck import Advisor
from sfactory.report.console import Console
from sfactory.report.observers import Observers, RunFacts
from sfactory.report.reporter import Reporter
from sfactory.runner.member_driver import MemberDriver
from sfactory.runner.pbt_driver import PbtDriver
from sfactory.shared.objects import SharedObjects
from sfactory.supervise.restarts import RestartBudget

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunContext:
    """All that a run works with. A restart of all processes gets its own context, with the same budgets.

    started_at: when the process or, after autotune, the training started. is_restart: the processes of this session
    ran before, and failed. worker_restarts, run_restarts: the restarts that a session is allowed. place: among ranks.
    """

    config: Config
    seed: int
    plan: Plan
    run_dir: RunDir
    resumed: Resumed
    console: Console
    observers: Observers
    spawner: Spawner
    interrupts: Interrupts
    started_at: float
    worker_restarts: RestartBudget
    run_restarts: RestartBudget
    is_restart: bool = False
    place: Place = ONE_RANK


class Executor(ABC):
    """Runs the learners, policy workers and actors of one run: as processes, or in turns in this process."""

    def __init__(self, context: RunContext) -> None:
        """Allocate what both kinds of run need; calls ``on_init`` of the observers."""
        config, plan, resumed, run_dir = context.config, context.plan, context.resumed, context.run_dir
        self._context = context
        shaped = config.population.with_pbt and plan.reward_shaping is not None
        self._shared = SharedObjects(plan.spec, plan.layout, plan.weight_bytes, shaped)
        if not context.is_restart:
            context.observers.begin(RunFacts(config, context.seed, run_dir.path, plan.spec, resumed.env_steps))
        self._shared.sends_episodes = context.observers.take_episodes
        advisor = None if config.run.serial_mode else Advisor(config, plan)
        self._reporter = Reporter(
            config, self._shared, run_dir, resumed, context.console, context.started_at, context.observers, advisor
        )
        self._reports = self._reporter.reports
        self._pbt_driver: PbtDriver | None = None
        if config.population.with_pbt:
            driver = MemberDriver if config.population.pbt_dir else PbtDriver
            self._pbt_driver = driver(
                config, context.seed, resumed, self._reports, self._shared, run_dir, plan.reward_shaping
            )
        elif (run_dir.path / STATE_NAME).exists():
            _log.warning(
                "--with_pbt=False: policies use the values of the flags; those that %s had reached are not used, and "
                "come back with --with_pbt=True",
                STATE_NAME,
            )

    @abstractmethod
    def run(self) -> Outcome:
        """Start all workers, train until a limit, a signal or a fault, and leave no worker behind."""

    def _announce_start(self) -> None:
        if not self._context.is_restart:
            self._context.observers.on_start()

    def _finish(self, failure: SFactoryError | None, done: bool) -> Outcome:
        """Write the last report, and publish a member. ``done``: a limit was reached, or an observer ended the run."""
        status: Result = "failed" if failure else "done" if done else "interrupted"
        if status == "done" and isinstance(self._pbt_driver, MemberDriver):
            self._pbt_driver.publish_last()
        return self._reporter.finish(status, failure)
