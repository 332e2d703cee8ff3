"""Room: a training run as processes. In: a resolved configuration. Out: files, and an Outcome."""

from __future__ import annotations

from sfactory.clock import Every, now
from sfactory.config.schema import Config
from sfactory.run.console import Console
from sfactory.run.crew import Crew
from sfactory.run.nursery import Nursery
from sfactory.run.outcome import Outcome
from sfactory.run.plan import Plan
from sfactory.run.reports import Reports
from sfactory.run.resumed import Resumed
from sfactory.run.rundir import RunDir
from sfactory.run.signals import Interrupts
from sfactory.run.stalls import StallWatch
from sfactory.run.summary import Result
from sfactory.run.supervision import Supervision
from sfactory.run.wiring import Wiring
from sfactory.run.writers import Writers


class ParallelRun:
    """Starts everything, reports while it runs, and leaves nothing behind."""

    def __init__(
        self, config: Config, seed: int, plan: Plan, rundir: RunDir, resumed: Resumed | None, console: Console
    ) -> None:
        self._config, self._seed, self._plan, self._rundir, self._console = config, seed, plan, rundir, console
        self._resumed = resumed or Resumed()
        self._wiring = Wiring(plan.spec, plan.layout, plan.weight_bytes)
        self._reports = Reports(
            config,
            self._wiring.to_main,
            self._wiring.status,
            earlier_best=self._resumed.best_return,
            earlier_seconds=self._resumed.train_seconds,
            earlier_episodes=self._resumed.summary.episodes if self._resumed.summary is not None else 0,
        )
        self._line_due = Every(config.report.report_interval_sec)
        self._row_due = Every(config.report.experiment_summaries_interval)
        self._stalls = StallWatch(self._wiring.status, plan.layout.actor_names + plan.layout.policy_worker_names)
        self._announced = False

    def run(self, nursery: Nursery, interrupts: Interrupts, process_started_at: float) -> Outcome:
        """Train until a limit, a signal or a fault."""
        config, plan, wiring = self._config, self._plan, self._wiring
        report = config.report
        writers = Writers(self._rundir.path, report.with_tensorboard, report.flush_summaries_interval)
        crew = Crew(nursery, wiring)
        supervision = Supervision(
            crew, wiring.control, wiring.status, interrupts, config.sampling.reset_timeout_seconds
        )
        # From here on signals are counted, not raised: a half-started child must not escape the crew.
        interrupts.raising = False
        try:
            directory = str(self._rundir.checkpoint_dir(0))
            crew.start(config, self._seed, self._resumed.env_steps, plan.device, plan.cores, [directory])
            self._reports.start()
            supervision.run(lambda: self._beat(writers, process_started_at))
        finally:
            crew.kill()
            self._reports.stop()
        self._reports.sample()
        self._console.line(self._reports.progress())
        writers.write(self._reports.trained_env_steps, self._reports.scalars())
        writers.close()
        return self._outcome(supervision, interrupts)

    def _beat(self, writers: Writers, process_started_at: float) -> bool:
        reports = self._reports
        reports.sample()
        if not self._announced and reports.sampled_env_steps:
            self._announced = True
            self._console.message(f"first env step {now() - process_started_at:.1f} s after the start")
        mean_return = reports.window_mean()
        if mean_return is not None:
            self._wiring.control.tell_mean(0, mean_return)
        self._stalls.look()
        if self._line_due.due():
            self._console.line(reports.progress())
        if self._row_due.due():
            writers.write(reports.trained_env_steps, reports.scalars())
        return False

    def _outcome(self, supervision: Supervision, interrupts: Interrupts) -> Outcome:
        error = supervision.failure
        status: Result = "failed" if error is not None else "interrupted" if interrupts.count else "done"
        if status == "interrupted" and supervision.done:
            status = "done"
        return Outcome(status, self._reports.summary(status), error, self._reports.saved_env_steps)
