"""Runs one session of a training run, from opening its directory to the last line on stderr, or one benchmark."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sfactory.benchmark.autotune import Autotune
from sfactory.benchmark.benchmark import Benchmark, BenchmarkResult
from sfactory.clock import now
from sfactory.config.flags import all_flags, assigned, values_of
from sfactory.config.resolve import AUTOTUNE, Resolved
from sfactory.config.rule import is_default
from sfactory.config.run_rules import START_ONE_RANK
from sfactory.config.saved_config import DRAWN, OF_NEW_RUNS, SAVED_RUN, SUMMARY_NAME, write_config
from sfactory.config.schema import Config
from sfactory.config.task_defaults import depends_on_step_time
from sfactory.env.factory import EnvFactory
from sfactory.errors import (
    MOST_OF_REPORT,
    CannotSaveError,
    CheckpointError,
    ConfigError,
    Refused,
    SFactoryError,
    clean,
    named,
)
from sfactory.experiment.archive import EarlierRun
from sfactory.experiment.resume import Resumed, summary_of
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Outcome, Summary, result_line
from sfactory.learner.hooks import Hooks
from sfactory.learner.initial_weights import initial_weights
from sfactory.learner.setup import Limits
from sfactory.planning.env_probe import probe_env
from sfactory.planning.plan import Plan, choose_device, fitted_to_env, plan_run, require_mapping, steps_are_timed
from sfactory.process.command import resume_command, train_command, tuned_command
from sfactory.process.signals import Interrupted, Interrupts, stdout_to_stderr
from sfactory.process.spawn import Spawner
from sfactory.ranks.place import LAST_LINE, ONE_RANK, Place
from sfactory.report.console import Console, ConsoleHandler
from sfactory.report.observers import Observer, Observers
from sfactory.runner.context import RunContext
from sfactory.runner.first_lines import log_first_lines
from sfactory.runner.member_driver import held_member
from sfactory.runner.run import run_with_restarts
from sfactory.runner.sampler import Sampler
from sfactory.seeds import Branch, seed_at
from sfactory.supervise.restarts import RestartBudget
from sfactory.system.resources import require_linux

_log = logging.getLogger(__name__)


class Session:
    """One start of a command line: ``train`` or ``benchmark``. has_begun: whether it trains, or has trained."""

    def __init__(
        self,
        resolved: Resolved,
        arguments: list[str],
        spawner: Spawner,
        interrupts: Interrupts,
        started_at: float,
        place: Place = ONE_RANK,
    ) -> None:
        """arguments: the words that ``resolved`` was read from. started_at: when the process started."""
        self._resolved, self._seed = _with_seed(resolved)
        self._place = place
        if place.rank:  # ranks with the same seed would collect the same data
            self._seed = seed_at(self._seed, Branch.RANK, place.rank, bits=31)
        self._arguments, self._spawner, self._interrupts = arguments, spawner, interrupts
        self._started_at, self.has_begun = started_at, False

    @property
    def _config(self) -> Config:
        return self._resolved.config

    def train(self, observing: Mapping[str, Observer] | None = None) -> Outcome:
        """Train, up to the last line on stderr. ``observing``: observers beside those of the flag, by name.

        Raises SFactoryError if the run was refused before it started.
        """
        observers = _make_observers(self._config, self._interrupts, observing)
        with self._open_run_dir() as run_dir, EarlierRun(run_dir) as earlier:
            plan = self._plan_and_archive(earlier)
            console = _open_console(self._config, run_dir, self._spawner)
            resumed: Resumed | None = None
            try:
                plan = plan or self.plan()
                resumed = self._read_checkpoint(run_dir, plan)
                if resumed is None:
                    # Refuses those that do not fit, and warns once for all policies and ranks.
                    initial_weights(self._config, plan.weight_shapes, None if self._place.rank else plan.spec)
                else:
                    self._resolved = with_own_weights(self._resolved)
                self._warn()
                if resumed is not None and resumed.finished(self._config):
                    resumed.say_finished(self._resolved.changed)
                    outcome = Outcome("done", summary_of(self._config, resumed, "done"), None)
                else:
                    for change in self._resolved.changed:
                        _log.warning("%s; it resumes with the new value", change)
                    plan = self._tune(plan, console) if self._config.tuning.autotune else plan
                    run_dir.require_held()
                    resolved = self._resolved
                    write_config(run_dir.path, resolved.config, resolved.sources, resolved.saved.sources)
                    self.has_begun = True
                    run_dir.write_run_json("running", argv=self._arguments, seed=self._seed)
                    log_first_lines(self._config, plan, resumed, run_dir, self._place)
                    outcome = run_with_restarts(self._context(plan, run_dir, resumed, console, observers))
            except Interrupted:
                self._interrupts.raising = False
                if resumed is None:
                    with contextlib.suppress(CheckpointError):  # the next start reports damaged ones
                        resumed = Resumed.from_checkpoint(run_dir, self._config)
                saved_env_steps = None if resumed is None else resumed.env_steps
                summary = summary_of(self._config, resumed, "interrupted")
                outcome = Outcome("interrupted", summary, None, saved_env_steps)
            except BaseException as error:
                if self.has_begun:
                    self._record_failure(error, observers, run_dir, resumed)
                console.close()
                raise
            return self._conclude(outcome, observers, run_dir, earlier, console)

    def benchmark(self) -> BenchmarkResult:
        """Measure throughput."""
        console = Console(None, None, quiet=self._config.report.quiet)
        plan = self.plan()
        self._warn()
        if self._config.tuning.autotune:
            plan = self._tune(plan, console)
        started = now()
        result = Benchmark(self._config, plan, console).run(self._spawner, self._interrupts, self._seed)
        console.close(f"RESULT done benchmark of {now() - started:.0f} s")
        return result

    def sampler(self) -> Sampler:
        """Sample without a learner, and without a directory of a run."""
        plan = self.plan()
        self._warn()
        return Sampler(self._config, plan, self._spawner, self._seed)

    def _warn(self) -> None:
        """Show the warnings of the settings, which are those of all ranks."""
        for warning in () if self._place.rank else self._resolved.warnings:
            _log.warning("%s", warning)

    @contextlib.contextmanager
    def _open_run_dir(self) -> Iterator[RunDir]:
        """The directory of the run; that of a rank but the first, which leaves nothing behind, is temporary."""
        run = self._config.run
        with contextlib.ExitStack() as stack:
            folder = run.train_dir
            if self._place.rank:  # in the folder of what has started it, which removes it if this process is killed
                where = self._place.folder or None
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sfactory-rank-", dir=where))
            run_dir = stack.enter_context(RunDir.open(folder, run.experiment))
            if self._config.population.with_pbt and self._config.population.pbt_dir:
                stack.enter_context(held_member(self._config, run_dir))
            yield run_dir

    def _read_checkpoint(self, run_dir: RunDir, plan: Plan) -> Resumed | None:
        """Where the run was; None for a fresh one. All ranks read the checkpoint that the first one resumes."""
        run = self._config.run
        if self._place.rank and run.restart_behavior == "resume":
            run_dir = RunDir.unlocked(run.train_dir, run.experiment)
        shapes, given, spec = plan.weight_shapes or None, self._resolved.given, None if self._place.rank else plan.spec
        return Resumed.from_checkpoint(run_dir, self._config, shapes, given, spec)

    def plan(self) -> Plan:
        """Probe the env, and decide sizes and devices. Raises ResourceError if this system runs no processes."""
        config, sampling = self._config, self._config.sampling
        if not config.run.serial_mode:
            require_linux("a run of several processes", "train in one process: --serial_mode=True")
        device = choose_device(config.run.device, config.run.learner_devices)
        factory = dataclasses.replace(EnvFactory.of(config), device=device)  # where a TensorEnv is made
        limit_s, gpus = sampling.reset_timeout_seconds, sampling.actor_worker_gpus
        for_inference = steps_are_timed(config)
        timed = for_inference or depends_on_step_time(self._resolved)
        probed = probe_env(self._spawner, factory, limit_s, gpus, timed, drawn=config.evaluation.records)
        self._resolved = fitted_to_env(self._resolved, probed, device)
        config = self._config
        spec, step_us = probed.spec.for_model(config.model), probed.step_us if for_inference else None
        plan = plan_run(config, spec, step_us, probed.makes_tensors, self._place)
        plan = dataclasses.replace(plan, reward_shaping=probed.reward_shaping)
        require_mapping(config, plan)
        if plan.layout.resident and self._place.world > 1:
            raise ConfigError([f"--env={config.run.env}: a TensorEnv trains in one rank; {START_ONE_RANK}"])
        for sentence in plan.reading:
            _log.info("%s", sentence)
        if plan.why_inference:
            _log.info("--inference=auto is %s: %s", plan.layout.inference, plan.why_inference)
        return plan

    def _context(
        self, plan: Plan, run_dir: RunDir, resumed: Resumed | None, console: Console, observers: Observers
    ) -> RunContext:
        """What the run works with."""
        return RunContext(
            config=self._config,
            seed=self._seed,
            plan=plan,
            run_dir=run_dir,
            resumed=resumed or Resumed(),
            console=console,
            observers=observers,
            spawner=self._spawner,
            interrupts=self._interrupts,
            started_at=self._started_at,
            worker_restarts=RestartBudget("max_worker_restarts", self._config.sampling.max_worker_restarts),
            run_restarts=RestartBudget("max_restarts", self._config.run.max_restarts),
            place=self._place,
        )

    def _plan_and_archive(self, earlier: EarlierRun) -> Plan | None:
        """If the flags say so, archive an earlier run, and return the plan of this one, which is made first."""
        behavior = self._config.run.restart_behavior
        if behavior == "resume":
            return None
        plan = self.plan()
        earlier.archive(behavior)
        return plan

    def _tune(self, plan: Plan, console: Console) -> Plan:
        """Use the settings that trials find fastest, and return their plan; a run that was tuned keeps its own."""
        resolved = self._resolved
        if resolved.tuned:
            kept = " ".join(assigned(name, value) for name, value in resolved.tuned.items())
            console.message(
                f"autotune: this run keeps the settings that it was tuned to: {kept}; to tune again, use another "
                "--experiment or --restart_behavior=restart"
            )
        else:
            autotune = Autotune(resolved.config, resolved.given, plan, self._seed, console)
            tuned = autotune.run(self._spawner, self._interrupts)
            command = tuned_command(self._arguments, tuned.chosen, resolved.set_by_file)
            settings = " ".join(assigned(name, value) for name, value in tuned.chosen.items())
            console.message(f"autotune: the same without it: {command or settings}")
            sources = {**resolved.sources, **dict.fromkeys(tuned.chosen, AUTOTUNE)}
            self._resolved, plan = dataclasses.replace(resolved, config=tuned.config, sources=sources), tuned.plan
        self._started_at = now()  # the time to the first step counts from the end of the trials
        return plan

    def _record_failure(
        self, error: BaseException, observers: Observers, run_dir: RunDir, resumed: Resumed | None
    ) -> None:
        """Record that the session has ended with ``error``, and without an outcome, and end the observers."""
        self._interrupts.raising = False  # as at any other end
        run_dir.write_run_json("failed", argv=self._arguments, seed=self._seed)
        if not isinstance(error, Refused):  # it may have trained
            with contextlib.suppress(SFactoryError, OSError):
                resumed = Resumed.from_checkpoint(run_dir, self._config) or resumed
        cause = error if isinstance(error, SFactoryError) else SFactoryError(named(error))
        saved_env_steps = 0 if resumed is None else resumed.env_steps
        outcome = Outcome("failed", summary_of(self._config, resumed, "failed"), cause, saved_env_steps)
        _write_summary(outcome, run_dir)
        observers.end(outcome)

    def _conclude(
        self, ended: Outcome, observers: Observers, run_dir: RunDir, earlier: EarlierRun, console: Console
    ) -> Outcome:
        """Record how the session ended, end the observers, and print the last lines on stderr."""
        stays_done = not self.has_begun and ended.status != "done" and run_dir.is_done
        if not stays_done:
            _write_summary(ended, run_dir)  # before the observers: one may take minutes to end
        outcome = observers.end(ended)
        if outcome.summary != ended.summary and not stays_done:
            _write_summary(outcome, run_dir)
        summary, error = outcome.summary, outcome.error
        run_dir.write_run_json(outcome.status, argv=self._arguments, seed=self._seed, idle=not self.has_begun)
        if error is not None and str(error) != error.headline:  # the last line has the headline
            console.message(f"error: {clean(str(error), MOST_OF_REPORT)}", logging.ERROR)
        is_back = (outcome.status != "done" or not self.has_begun) and earlier.put_back()
        command = resume_command(self._arguments, self._resolved.set_by_file)
        if is_back or (outcome.status != "done" and earlier.stands):
            command = train_command(self._arguments)  # another start begins where this one did
        earlier.replace_older()
        line = result_line(
            outcome.status,
            env_steps=summary.env_steps,
            return_mean=summary.episode_return_mean,
            cause="" if error is None else error.headline,
            ended_by=summary.ended_by,
            saved_env_steps=outcome.saved_env_steps,
            resume_command="" if run_dir.lost else command,
        )
        if self._place.rank:  # the first rank has the result
            line = f"rank {self._place.rank} {outcome.status}{'' if error is None else f': {error.headline}'}"
        console.close(line, prints=not self._place.leave(LAST_LINE, line))
        return outcome


def _write_summary(outcome: Outcome, run_dir: RunDir) -> None:
    try:
        run_dir.require_held()
        outcome.summary.write(run_dir.summary_path)
    except CannotSaveError as cannot_save:
        if str(cannot_save) != str(outcome.error):
            _log.error("%s", cannot_save)


def summary_of_unopened(config: Config) -> Summary:
    """The summary of a run that was interrupted before its directory was opened."""
    earlier = Summary.read(Path(config.run.train_dir) / config.run.experiment / SUMMARY_NAME)
    return (earlier or summary_of(config, None, "interrupted")).ended("interrupted")


def _with_seed(resolved: Resolved) -> tuple[Resolved, int]:
    """The seed, which is drawn if none was given."""
    seed = resolved.config.run.seed
    if seed is not None:
        return resolved, seed
    seed = secrets.randbits(31)
    return resolved.replaced({"seed": seed}, DRAWN), seed


def with_own_weights(resolved: Resolved) -> Resolved:
    """``resolved`` for a run that has a checkpoint: with what it began with, and warnings if the user gave other."""
    values, saved = values_of(resolved.config), resolved.saved.values
    begun = {name: saved.get(name, all_flags()[name].default) for name in OF_NEW_RUNS}
    changed = {name: value for name, value in begun.items() if value != values[name]}
    idle = "has no effect: only a new run begins with it; choose another --experiment"
    warnings = [*resolved.warnings, *(f"{assigned(name, values[name])} {idle}" for name in changed)]
    return dataclasses.replace(resolved.replaced(changed, SAVED_RUN), warnings=warnings)


def _make_observers(config: Config, interrupts: Interrupts, observing: Mapping[str, Observer] | None) -> Observers:
    """The observers of the run. Raises ConfigError if one of them, or a hook of the learner, cannot be imported."""
    problems: list[str] = []
    observers = Observers()
    try:
        with stdout_to_stderr():  # modules may print when they are imported
            Hooks.of(config.hooks.after_train_step)
    except ConfigError as error:
        problems += error.problems
    try:
        observers = Observers.of(config.hooks.observers, interrupts, observing)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return observers


def ends_of(config: Config) -> tuple[int | None, float | None]:
    """Env steps of each policy, and seconds, after which training ends; None where the limit is the default."""
    limits = Limits.of(config.run, config.frames_per_step)
    has_steps = not all(is_default(config, name) for name in ("train_for_env_steps", "train_for_frames"))
    return limits.env_steps if has_steps else None, None if is_default(config, "train_for_seconds") else limits.seconds


def _open_console(config: Config, run_dir: RunDir, spawner: Spawner) -> Console:
    console = Console(
        *ends_of(config),
        log_path=run_dir.log_path if config.report.log_to_file else None,
        quiet=config.report.quiet,
        title=config.run.experiment,
        on_view=spawner.view_is_open,
    )
    logging.getLogger().handlers[:] = [ConsoleHandler(console)]
    logging.getLogger().setLevel(config.report.level)
    return console
