"""Room: a training run as processes. In: a resolved configuration. Out: files, and an Outcome."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sfactory.checkpoint import CheckpointDir
from sfactory.clock import Every, now
from sfactory.config.schema import Config
from sfactory.errors import SFactoryError
from sfactory.learner.setup import Limits
from sfactory.run.console import Console
from sfactory.run.crew import Crew
from sfactory.run.nursery import Nursery
from sfactory.run.plan import Plan
from sfactory.run.reports import Reports
from sfactory.run.rundir import RunDir
from sfactory.run.signals import Interrupts
from sfactory.run.stalls import StallWatch
from sfactory.run.summary import Result, Summary
from sfactory.run.supervision import Supervision
from sfactory.run.wiring import Wiring
from sfactory.run.writers import Writers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a run ended. error: its cause, if it failed. saved_env_steps: where a resumed run goes on."""

    status: Result
    summary: Summary
    error: SFactoryError | None
    saved_env_steps: int | None = None


@dataclass(frozen=True)
class Resumed:
    """Where an earlier session stopped.

    env_steps, train_seconds, updates: of the checkpoint. best_return: the best mean return ever, as far as it is
    known. summary: the last session's.
    """

    env_steps: int = 0
    train_seconds: float = 0.0
    updates: int = 0
    best_return: float | None = None
    summary: Summary | None = None

    @staticmethod
    def from_checkpoint(rundir: RunDir, config: Config) -> Resumed | None:
        """Facts of the checkpoint that would be resumed; None for a fresh run. Raises CheckpointError."""
        directory = CheckpointDir(rundir.checkpoint_dir(0), config.checkpoint.keep_checkpoints)
        loaded = directory.load_to_go_on(config.checkpoint.load_checkpoint_kind)
        if loaded is None:
            earlier = Summary.read(rundir.summary_path)
            if earlier is not None and earlier.env_steps:
                log.warning("an earlier session made %d env steps but saved none: starting at 0", earlier.env_steps)
            return None
        payload = loaded.payload
        saved = float(payload["best_return"])
        bests = [saved if saved > float("-inf") else None]
        summary = Summary.read(rundir.summary_path)
        if summary is not None and summary.episodes >= config.report.stats_avg:
            bests.append(summary.best_episode_return_mean)
        return Resumed(
            env_steps=int(payload["env_steps"]),
            train_seconds=float(payload["train_seconds"]),
            updates=int(payload["train_step"]),
            best_return=max((best for best in bests if best is not None), default=None),
            summary=summary,
        )

    def finished(self, config: Config) -> bool:
        """True if the limits of ``config`` are reached already."""
        return Limits.of(config.run, config.sampling.env_frameskip).reached(self.env_steps, self.train_seconds)


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
