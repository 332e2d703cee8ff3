"""Reports on a run while it trains and when it ends: console lines, metrics rows, observers, the outcome."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from sfactory.clock import Every, now
from sfactory.config.env_families import find_family, makes_many_at_once
from sfactory.config.saved_config import METRICS_NAME, VIDEOS_NAME
from sfactory.config.schema import Config
from sfactory.errors import SFactoryError
from sfactory.experiment.resume import Resumed, summary_of
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Outcome, Result
from sfactory.play.eval_video import VideoFolder
from sfactory.report.bottleneck import Advisor, Load, LoadMeter
from sfactory.report.collector import ReportCollector
from sfactory.report.console import Console
from sfactory.report.eval_results import EVALUATION_NAMES, VIDEO
from sfactory.report.matches import MatchTable
from sfactory.report.observers import Observers
from sfactory.report.progress import Progress
from sfactory.report.scalars import account_scalars, memory_by_kind, memory_of_run
from sfactory.report.writers import MetricsWriter, Scalars, TensorBoard, numbers_of
from sfactory.shared.objects import SharedObjects
from sfactory.system.cores import Cores

_VIEW_S = 1.0  # between two pictures of the live view


class Reporter:
    """Writes what ``reports`` has collected to the console, the metrics files and the observers."""

    def __init__(
        self,
        config: Config,
        shared: SharedObjects,
        rundir: RunDir,
        resumed: Resumed,
        console: Console,
        process_started_at: float,
        observers: Observers | None = None,
        advisor: Advisor | None = None,
    ) -> None:
        """``advisor``: suggests flags in console messages; None: no suggestions."""
        report = config.report
        self.reports = ReportCollector(config, shared.actors_to_main, shared.learners_to_main, shared.status, resumed)
        self._control, self._console, self._candidate = shared.control, console, shared.candidate
        self._status, self._table = shared.status, shared.table
        pool = shared.opponents
        self._matches = None if pool is None else MatchTable(pool, rundir.path, resumed.env_steps)
        self._process_started_at = process_started_at
        self._observers = Observers() if observers is None else observers
        self._observed_updates = resumed.updates
        self._config, self._resumed = config, resumed
        names = (*self.reports.scalars(), *(EVALUATION_NAMES if config.evaluation.eval_interval_sec else ()))
        self._unknown: dict[str, float | None] = dict.fromkeys(names)  # of what not each row has
        self._writers: list[MetricsWriter | TensorBoard] = [MetricsWriter(rundir.path / METRICS_NAME)]
        if report.with_tensorboard:
            self._writers.append(TensorBoard(rundir.path, report.flush_summaries_interval, config))
        self._videos = VideoFolder(rundir.path / VIDEOS_NAME) if config.evaluation.records else None
        self._line_due = Every(report.report_interval_sec)
        self._row_due = Every(report.experiment_summaries_interval)
        self._announced = False
        self._by_remotes_alone = shared.layout.remote and not shared.layout.local_actors
        self._counts_of_line = 0, 0
        # In serial mode no process ever waits for another, so there are no shares of time.
        cores = None if config.run.serial_mode else Cores.available().count
        self._line_load, self._row_load = (cores and LoadMeter(shared.status, cores) for _ in range(2))
        self._view_load = LoadMeter(shared.status, cores) if cores and console.is_live else None
        self._view_due = Every(_VIEW_S)
        self._pure_fps = config.benchmark.benchmark_pure_simulation or None
        self._advisor = advisor
        self._advised: set[str | None] = set()

    def beat(self) -> None:
        """Update all rates; write a line and a row if they are due. Called a few times a second."""
        reports = self.reports
        reports.sample()
        if self._matches is not None:
            self._matches.look()
        if not self._announced and reports.sampled_env_steps:
            self._announced = True
            for load in (self._line_load, self._row_load, self._view_load):
                if load:
                    load.take()  # start-up is not part of any share
            self._line_due = Every(self._line_due.seconds)  # a line sooner would say nothing, and advise by chance
            self._console.message(f"first env step {now() - self._process_started_at:.1f} s after the start")
        self._show_episodes()  # before the best metric, which observers may report
        reports.check_best_metric()
        for policy, mean in enumerate(reports.best_metric_means()):
            self._control.tell_objective(policy, -math.inf if mean is None else mean)
        for policy, episodes in enumerate(reports.episodes_of_policies()):
            self._control.tell_episodes(policy, episodes)
        self._write_evaluations()
        if self._observers and reports.updates > self._observed_updates:
            self._observed_updates = reports.updates
            self._observers.on_training_step(reports.progress())
        if self._announced and self._line_due.due() and not self._waits_for_remotes():
            self._write_line()
        if self._announced and self._console.is_live and self._view_due.due():
            self._console.show(self._in_detail())
        if self._row_due.due():
            self._write_row()

    def finish(self, status: Result, error: SFactoryError | None) -> Outcome:
        """Write the last line and row; returns how the run ended."""
        # Not the sampling rate: actors made their last steps while they were being stopped.
        self.reports.sample_trained()
        if self.reports.sampled_env_steps:
            self._console.line(self.reports.progress())
        if self._matches is not None:
            self._matches.look()
        self._write_evaluations(last=True)
        self._show_episodes()
        candidate, evaluations = self._candidate, self.reports.evaluations
        if candidate is not None and candidate.number and not evaluations.is_complete(candidate.number):
            self._console.message(
                f"evaluation of policy version {candidate.version}: dropped, because the run ended before its episodes"
            )
        self._write_row(last=True)
        self.close()
        summary = (
            self.reports.summary(status) if self._is_of_session else summary_of(self._config, self._resumed, status)
        )
        if self.reports.sampled_env_steps and not summary.episodes:
            ends = _advice_on_ends(self._config.run.env)
            self._console.message(
                f"no episode ended, so there is no return. If episodes have no end: {ends}", logging.WARNING
            )
        return Outcome(status, summary, error, self.reports.saved_env_steps)

    def close(self) -> None:
        """Close the metrics files; may be called twice."""
        for writer in self._writers:
            writer.close()

    def _show_episodes(self) -> None:
        ended = self.reports.ended
        for _ in range(len(ended)):  # not those that come meanwhile: a beat must end
            self._observers.on_episode(ended.popleft(), self.reports.add_extra)

    def _waits_for_remotes(self) -> bool:
        """Whether all actors are remote, and nothing came since the last line. The gateway says if none is there."""
        before, self._counts_of_line = self._counts_of_line, (self.reports.sampled_env_steps, self.reports.updates)
        return self._by_remotes_alone and before == self._counts_of_line

    def _write_line(self) -> None:
        progress = self.reports.progress()
        if self._line_load:
            load = self._line_load.take()
            progress = replace(progress, busy=load.busy, bound_by=load.bound_by)
            # Once for each bottleneck: two that are close take turns.
            advice = self._advisor.advice(load) if self._advisor else None
            if advice is not None and load.bound_by not in self._advised:
                self._advised.add(load.bound_by)
                self._console.message(advice)
        self._console.line(progress)

    def _in_detail(self) -> Progress:
        """What the live view shows."""
        load = self._view_load.take() if self._view_load else Load({}, {}, {}, None)
        return replace(
            self.reports.progress(),
            busy=load.busy,
            bound_by=load.bound_by,
            slots={state.name.lower(): count for state, count in self._table.counts().items()},
            queues={what: statistics["mean"] for what, statistics in load.rings.items()},
            memory_mb=memory_by_kind(memory_of_run(self._status)),
            pure_fps=self._pure_fps,
        )

    def _write_row(self, last: bool = False) -> None:
        load = self._row_load.take().scalars() if self._row_load else {}
        scalars = self.reports.scalars() | account_scalars(self._status, self._table) | load
        if self._matches is not None:
            scalars |= self._matches.scalars()
            if self._is_of_session:
                self._matches.write()
        scalars |= self._observers.extra_summaries(scalars)
        self._write(scalars, last)

    def _write(self, scalars: Scalars, last: bool) -> None:
        env_steps = self.reports.trained_env_steps
        for writer in self._writers if self._is_of_session else ():
            writer.write(env_steps, scalars)
        if self._observers:
            self._unknown |= dict.fromkeys(scalars)
            self._observers.on_report(self._unknown | numbers_of(env_steps, scalars), last)

    @property
    def _is_of_session(self) -> bool:
        """Whether the run's files show this session: of one that goes back to an older checkpoint, once it has trained.

        A row with fewer env steps says that what follows them was undone.
        """
        goes_back = self._config.checkpoint.load_checkpoint_kind != "latest"
        return not (goes_back and 0 < self.reports.trained_env_steps == self._resumed.env_steps)

    def _write_evaluations(self, last: bool = False) -> None:
        """Write one row and one console line for each evaluation completed since the last call, and show its video.

        last: that of an evaluation that was not completed, too.
        """
        evaluations = self.reports.evaluations.take()
        for number, evaluation in evaluations:
            mean = evaluation.episode_return_mean
            if self._candidate is not None:
                self._candidate.tell_mean(number, -math.inf if mean is None else mean)
            self._write(evaluation.scalars(), last)
            self._console.message(str(evaluation))
        for video, env_steps in self._videos.new() if self._videos and (evaluations or last) else ():
            self._console.message(f"video {video.parent.name}/{video.name}")
            for writer in self._writers:
                writer.show(env_steps, VIDEO, video.with_suffix(".gif"))
            self._observers.on_video(video, env_steps)


def _advice_on_ends(env: str) -> str:
    """What gives the episodes of ``env`` an end: of those that a family makes many at a time no flag does."""
    family = find_family(env)
    own = (
        "--env_kwargs have the limit of an env that takes one: max_episode_steps in EnvPool and vector envs of "
        "Gymnasium, episode_length in Brax, max_cycles in PettingZoo"
    )
    if makes_many_at_once(family):
        return own
    others = "step() of any other env has to do it itself" if family is None else own
    return f"--max_episode_steps=1000 truncates those of envs of one agent that are made one by one; {others}"
