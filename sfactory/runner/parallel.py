"""Room: a training run as processes. In: a resolved configuration. Out: files, and an Outcome.

Room: a run that begins anew from its newest checkpoint. In: a resolved configuration. Out: files, and an Outcome.

A generation is all processes of a run with all that they share. Where no single process can be replaced, the next
generation starts where the newest checkpoint stands, as a resumed session does, within the same command: after a
learner's failure if ``--max_restarts`` allows, where one of several learners was killed, and where a worker that died
left rings that nobody can use any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable

from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.errors import CannotSaveError, CheckpointError, ExitCode, LearnerDied, RingsLost
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Outcome, Result
from sfactory.planning.plan import Plan
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.bottleneck import Advisor
from sfactory.report.console import Console
from sfactory.report.observers import Observers, RunFacts
from sfactory.report.reporter import Reporter
from sfactory.runner.pbt_driver import PbtDriver
from sfactory.supervise.hang_detection import HangDetector
from sfactory.supervise.monitors import IdlePolicyWarning, StallWarnings, StatusDump
from sfactory.supervise.process_group import ProcessGroup
from sfactory.supervise.restarts import RestartBudget, WorkerReplacement
from sfactory.supervise.shared_objects import SharedObjects
from sfactory.supervise.supervisor import Supervisor


class ParallelRun:
    """Starts everything, reports while it runs, and leaves nothing behind."""

    def __init__(
        self,
        config: Config,
        seed: int,
        plan: Plan,
        rundir: RunDir,
        resumed: Resumed | None,
        console: Console,
        observers: Observers,
        replaced: RestartBudget,
    ) -> None:
        """``replaced``: workers that are, in all generations."""
        self._config, self._seed, self._plan, self._rundir, self._console = config, seed, plan, rundir, console
        self._resumed = resumed or Resumed()
        self._observers, self._replaced = observers, replaced
        self._shared = SharedObjects(plan.spec, plan.layout, plan.weight_bytes, plan.is_shaped(config))
        layout = plan.layout
        self._status_dump = StatusDump(self._shared)
        watched = layout.actor_names + layout.policy_worker_names + layout.evaluator_names
        self._stalls = StallWarnings(self._shared.status, watched, who_waits=self._status_dump.text)

    def run(self, spawner: Spawner, interrupts: Interrupts, process_started_at: float, first: bool = True) -> Outcome:
        """Train until a limit, a signal or a fault. ``first``: of the generations of a session."""
        config, plan, shared = self._config, self._plan, self._shared
        observers, resumed = self._observers, self._resumed
        facts = RunFacts(config, self._seed, self._rundir.path, plan.spec, resumed.env_steps)
        wanted = observers.begin(facts) if first else not observers.over
        reporting = Reporter(
            config,
            shared,
            self._rundir,
            resumed,
            self._console,
            process_started_at,
            observers,
            Advisor(config, plan),
        )
        process_group = ProcessGroup(spawner, shared, self._rundir.log_path if config.report.log_to_file else None)
        supervision = self._supervision(process_group, interrupts, reporting)
        pbt_driver = PbtDriver.of(
            config, self._seed, resumed, reporting.reports, shared, self._rundir, plan.reward_shaping
        )
        idle_warning = IdlePolicyWarning(
            learning_policies(config), reporting.reports.env_steps_of, shared.has_learned_enough
        )
        # From here on signals are counted, not raised: a half-started child must not escape the crew.
        interrupts.raising = False

        def beat() -> bool:
            reporting.beat()
            self._stalls.look()
            self._status_dump.look(interrupts)
            idle_warning.look()
            if pbt_driver is not None:
                pbt_driver.look()
            return observers.over or (pbt_driver is not None and pbt_driver.failure is not None)

        with contextlib.closing(reporting):
            try:
                if wanted:
                    policies = range(plan.layout.num_policies)
                    directories: list[str | None] = [str(self._rundir.checkpoint_dir(policy)) for policy in policies]
                    config_of = None if pbt_driver is None else pbt_driver.config_of
                    process_group.start(
                        config, self._seed, resumed.env_steps, plan.device, plan.cores, directories, config_of
                    )
                    reporting.reports.start()
                    if first:
                        observers.on_start()
                    supervision.run(beat)
            finally:
                process_group.kill()
                if pbt_driver is not None:
                    pbt_driver.settle()
                for actor, name in enumerate(plan.layout.actor_names):
                    if process_group.was_cut_off(name):  # of others the board and the slots agree without a hand
                        shared.settle_steps(actor)
                reporting.reports.stop()
            failure = supervision.failure or (None if pbt_driver is None else pbt_driver.failure)
            return reporting.finish("failed" if failure else _status(supervision, interrupts), failure)

    def _supervision(self, process_group: ProcessGroup, interrupts: Interrupts, reporting: Reporter) -> Supervisor:
        shared, sampling = self._shared, self._config.sampling
        step_s, reset_s = sampling.step_timeout_seconds, sampling.reset_timeout_seconds
        return Supervisor(
            process_group,
            shared.control,
            shared.status,
            interrupts,
            reset_s,
            replacement=WorkerReplacement(process_group, shared, self._replaced),
            hangs=HangDetector(process_group, step_s, reset_s, reporting.reports.reading_since),
        )


def _status(supervision: Supervisor, interrupts: Interrupts) -> Result:
    return "interrupted" if interrupts.count and not supervision.done else "done"


_log = logging.getLogger(__name__)

Make = Callable[[Config, Resumed | None, RestartBudget], ParallelRun]


class RestartLoop:
    """Runs one generation after another. ``make``: the next one, which goes on from what is saved."""

    def __init__(self, config: Config, rundir: RunDir, make: Make) -> None:
        self._config, self._rundir, self._make = config, rundir, make
        self._replaced = RestartBudget("max_worker_restarts", config.sampling.max_worker_restarts)
        self._restarted = RestartBudget("max_restarts", config.run.max_restarts)

    def run(
        self, resumed: Resumed | None, spawner: Spawner, interrupts: Interrupts, process_started_at: float
    ) -> Outcome:
        """Train until a limit, a signal, or a fault that no restart is left for."""
        outcome = self._make(self._config, resumed, self._replaced).run(spawner, interrupts, process_started_at)
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
            outcome = run.run(spawner, interrupts, process_started_at, first=False)
        return outcome

    def _budget_for(self, outcome: Outcome) -> RestartBudget | None:
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
