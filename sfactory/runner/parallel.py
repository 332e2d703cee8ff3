"""Runs learners, policy workers, actors and evaluators as processes."""

from __future__ import annotations

import contextlib

from sfactory.config.population_rules import learning_policies
from sfactory.config.saved_config import VIDEOS_NAME
from sfactory.experiment.summary import Outcome
from sfactory.ranks.place import START_S
from sfactory.runner.context import Executor, RunContext
from sfactory.supervise.hang_detection import WorkerHangs
from sfactory.supervise.monitors import IdlePolicyWarning, StallWarnings, StatusDump
from sfactory.supervise.process_group import ProcessGroup, Workload
from sfactory.supervise.restarts import WorkerReplacement
from sfactory.supervise.supervisor import Supervisor


class ParallelExecutor(Executor):
    """Starts all processes, supervises them, and leaves none behind."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        config, plan, run_dir, shared = context.config, context.plan, context.run_dir, self._shared
        policies = range(plan.layout.num_policies)
        workload = Workload(
            config=config,
            seed=context.seed,
            generation=context.resumed.env_steps,
            device=plan.device,
            cores=plan.cores,
            checkpoint_dirs=[
                None if context.place.rank else str(run_dir.checkpoint_dir(policy)) for policy in policies
            ],
            config_of=None if self._pbt_driver is None else self._pbt_driver.config_of,
            log_path=run_dir.log_path if config.report.log_to_file else None,
            place=context.place,
            video_folder=run_dir.path / VIDEOS_NAME if config.evaluation.records else None,
        )
        self._group = ProcessGroup(context.spawner, shared, workload)
        step_s, reset_s = config.sampling.step_timeout_seconds, config.sampling.reset_timeout_seconds
        boot_s = reset_s if context.place.world == 1 else max(reset_s, START_S)
        self._supervisor = Supervisor(
            self._group,
            shared.control,
            shared.status,
            context.interrupts,
            boot_s,
            replacement=WorkerReplacement(self._group, shared, context.worker_restarts),
            hangs=WorkerHangs(self._group, step_s, reset_s, lambda: self._reports.reading_since),
        )
        self._status_dump = StatusDump(shared)
        watched = plan.layout.actor_names + plan.layout.policy_worker_names + plan.layout.evaluator_names
        self._stalls = StallWarnings(shared.status, watched, self._status_dump.text)
        self._idle_policies = IdlePolicyWarning(
            learning_policies(config), self._reports.env_steps_of, shared.has_learned_enough
        )

    def run(self) -> Outcome:
        """See Executor."""
        interrupts, supervisor, pbt_driver = self._context.interrupts, self._supervisor, self._pbt_driver
        with contextlib.closing(self._reporter):
            # From here on signals are counted, not raised: a half-started child must not escape the group.
            interrupts.raising = False
            try:
                if not self._context.observers.over:
                    self._group.start()
                    self._reports.start()
                    self._announce_start()
                    supervisor.run(self._beat)
            finally:
                self._group.kill()
                if pbt_driver is not None:
                    pbt_driver.settle()
                for actor, name in enumerate(self._shared.layout.actor_names):
                    if name in self._group.cut_off:  # the counts of actors that ended in order agree anyway
                        self._shared.settle_steps(actor)
                self._reports.stop()
            failure = supervisor.failure or (None if pbt_driver is None else pbt_driver.failure)
            return self._finish(failure, done=supervisor.done or not interrupts.count)

    def _beat(self) -> bool:
        """Report, warn and advance PBT; True ends the run. Raises CannotSaveError if the run directory is lost."""
        self._context.run_dir.require_held()
        self._context.interrupts.take_back()
        self._reporter.beat()
        self._stalls.look()
        self._status_dump.look(self._context.interrupts)
        self._idle_policies.look()
        if self._pbt_driver is not None:
            self._pbt_driver.look()
        observers, control = self._context.observers, self._shared.control
        failed = observers.failed or (self._pbt_driver is not None and self._pbt_driver.failure is not None)
        if observers.enough and not failed and not control.stopping:
            control.tell_enough()
        return observers.enough or failed
