"""Holds what all parts of a training run work with, and the interface of what drives its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from sfactory.config.schema import Config
from sfactory.errors import SFactoryError
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Result
from sfactory.planning.plan import Plan
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.console import Console
from sfactory.report.observers import Observers
from sfactory.report.reporter import Reporter
from sfactory.runner.pbt_driver import PbtDriver
from sfactory.supervise.restarts import RestartBudget
from sfactory.supervise.shared_objects import SharedObjects


@dataclass(frozen=True)
class RunContext:
    """What a run works with. A restart of all processes gets a context of its own, with the same budgets.

    started_at: when the process or, after autotune, the training started, for the time to the first step.
    worker_restarts, run_restarts: what may still be replaced; shared by all restarts of a session.
    is_restart: all processes of this session ran before, and failed.
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
    worker_restarts: RestartBudget = field(default_factory=lambda: RestartBudget("max_worker_restarts", 0))
    run_restarts: RestartBudget = field(default_factory=lambda: RestartBudget("max_restarts", 0))
    is_restart: bool = False


class Executor(ABC):
    """Drives the learners, policy workers and actors of a run: as processes, or in turns in this process.

    failure: what ended the run, if it failed. finished: a limit was reached, or an observer ended the run.
    """

    def __init__(
        self, context: RunContext, shared: SharedObjects, reporter: Reporter, pbt_driver: PbtDriver | None
    ) -> None:
        self._context, self._shared, self._reporter, self._pbt_driver = context, shared, reporter, pbt_driver
        self.failure: SFactoryError | None = None
        self.finished = False

    @abstractmethod
    def open(self) -> AbstractContextManager[None]:
        """Context of the work; at its end no worker is left, and ``failure`` and ``finished`` are known."""

    @abstractmethod
    def start(self) -> None:
        """Start all workers."""

    @abstractmethod
    def drive(self) -> None:
        """Train until a limit, a signal or a fault."""

    @property
    def status(self) -> Result:
        """How the run ended."""
        return "failed" if self.failure else "done" if self.finished else "interrupted"
