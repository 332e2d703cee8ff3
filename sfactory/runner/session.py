"""Room: one session of a run, from its directory to its last line. In: a resolved command line. Out: exit code."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sfactory.benchmark.autotune import Autotune
from sfactory.benchmark.benchmark import Benchmark
from sfactory.clock import now
from sfactory.config.flags import assigned
from sfactory.config.population_rules import learning_policies
from sfactory.config.resolve import AUTOTUNE, CONFIG_FILE, Resolved
from sfactory.config.saved_config import write_config
from sfactory.config.schema import Config
from sfactory.env.factory import EnvFactory
from sfactory.errors import CannotSaveError, CheckpointError, ConfigError, ExitCode
from sfactory.experiment.archive import archive_run
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Outcome, Result, Summary, result_line
from sfactory.layout import Layout
from sfactory.learner.hooks import Hooks
from sfactory.learner.setup import Limits
from sfactory.messages import PolicyLag
from sfactory.planning.env_probe import probe_env
from sfactory.planning.plan import Plan, plan_run, require_mapping, steps_are_timed
from sfactory.process.command import resume_command, tuned_command
from sfactory.process.signals import Interrupted, Interrupts, stdout_to_stderr
from sfactory.process.spawn import Spawner
from sfactory.report.console import Console
from sfactory.report.observers import Observer, Observers
from sfactory.runner.parallel import ParallelRun, RestartLoop
from sfactory.runner.serial import SerialRun
from sfactory.supervise.restarts import RestartBudget

_log = logging.getLogger(__name__)

_NOBODY: Mapping[str, Observer] = {}
_ENDLESS = 10**9  # limits beyond this are the defaults, which nobody waits for


def _plan(config: Config, spawner: Spawner) -> Plan:
    sampling = config.sampling
    factory = EnvFactory.of(config.run, sampling)
    limit_s, gpus = sampling.reset_timeout_seconds, sampling.actor_worker_gpus
    probed = probe_env(spawner, factory, limit_s, gpus, timed=steps_are_timed(config))
    plan = plan_run(config, probed.spec, probed.step_us)
    plan = dataclasses.replace(plan, reward_shaping=probed.reward_shaping)
    require_mapping(config, plan)
    if plan.why_inference:
        _log.info("--inference=auto is %s: %s", plan.layout.inference, plan.why_inference)
    return plan


def _with_seed(resolved: Resolved) -> Resolved:
    """The same with a seed drawn if none was given."""
    config = resolved.config
    if config.run.seed is not None:
        return resolved
    run = dataclasses.replace(config.run, seed=secrets.randbits(31))
    return dataclasses.replace(
        resolved,
        config=dataclasses.replace(config, run=run),
        sources={**resolved.sources, "seed": "drawn at random"},
    )


def _seed_of(config: Config) -> int:
    assert config.run.seed is not None, "a seed was drawn"
    return config.run.seed


def train(resolved: Resolved, arguments: list[str], spawner: Spawner, interrupts: Interrupts, started_at: float) -> int:
    """Train, and print the result; returns the exit code. Raises SFactoryError as ``trained`` does."""
    outcome = trained(resolved, arguments, spawner, interrupts, started_at)
    print(outcome.summary.to_json(), flush=True)
    if outcome.error is not None:
        return int(outcome.error.exit_code)
    return interrupts.exit_code if outcome.status == "interrupted" else int(ExitCode.DONE)


def trained(
    resolved: Resolved,
    arguments: list[str],
    spawner: Spawner,
    interrupts: Interrupts,
    started_at: float,
    watching: Mapping[str, Observer] = _NOBODY,
) -> Outcome:
    """Train, up to the last line on stderr; how it ended. ``watching``: observers beside those of the flag, by name.

    Raises SFactoryError if the run was refused before it started.
    """
    resolved = _with_seed(resolved)
    config = resolved.config
    seed = _seed_of(config)
    observers = _observers(config, interrupts, watching)
    with RunDir.open(config.run.train_dir, config.run.experiment) as rundir:
        resumed: Resumed | None = None
        began = False
        plan = _make_way(config, rundir, spawner)
        console = _console(config, rundir)
        try:
            plan = plan or _plan(config, spawner)
            resumed = Resumed.from_checkpoint(rundir, config, plan.spec)
            for warning in resolved.warnings:
                _log.warning("%s", warning)
            if resumed is not None and resumed.finished(config):
                outcome = _already_finished(config, resumed)
            else:
                if config.tuning.autotune:
                    resolved, plan = _tuned(resolved, plan, arguments, spawner, interrupts, console)
                    config, started_at = resolved.config, now()
                write_config(rundir.path, config, resolved.sources)
                began = True
                rundir.write_run_json("running", argv=arguments, seed=seed)
                _announce(config, plan, resumed, rundir)
                if config.run.serial_mode:
                    serial = SerialRun(config, seed, plan, rundir, resumed, console, observers)
                    outcome = serial.run(interrupts, started_at)
                else:
                    make = partial(_generation, seed, plan, rundir, console, observers)
                    outcome = RestartLoop(config, rundir, make).run(resumed, spawner, interrupts, started_at)
        except Interrupted:
            interrupts.raising = False
            resumed = resumed or _saved(rundir, config)
            saved_env_steps = None if resumed is None else resumed.env_steps
            outcome = Outcome("interrupted", _standing(config, resumed, "interrupted"), None, saved_env_steps)
        except BaseException:
            if began:
                rundir.write_run_json("failed", argv=arguments, seed=seed)
            console.close()
            raise
        outcome = observers.end(outcome)
        _record(outcome, rundir)
        rundir.write_run_json(outcome.status, argv=arguments, seed=seed)
        _conclude(outcome, resume_command(arguments, _from_file(resolved.sources)), console)
        return outcome


def _generation(
    seed: int,
    plan: Plan,
    rundir: RunDir,
    console: Console,
    observers: Observers,
    config: Config,
    resumed: Resumed | None,
    replaced: RestartBudget,
) -> ParallelRun:
    return ParallelRun(config, seed, plan, rundir, resumed, console, observers, replaced)


def not_begun(config: Config) -> Summary:
    """Where a run stands that was interrupted before its directory was looked at."""
    path = Path(config.run.train_dir) / config.run.experiment / "summary.json"
    earlier = Summary.read(path)
    return (
        _standing(config, None, "interrupted")
        if earlier is None
        else dataclasses.replace(earlier, status="interrupted")
    )


def _observers(config: Config, interrupts: Interrupts, watching: Mapping[str, Observer]) -> Observers:
    """The observers of the run. Raises ConfigError if one of them, or a hook of the learner's, cannot be had."""
    problems: list[str] = []
    observers = Observers()
    try:
        with stdout_to_stderr():  # modules may print when they are imported
            Hooks.of(config.hooks.after_train_step)
    except ConfigError as error:
        problems += error.problems
    try:
        observers = Observers.of(config.hooks.observers, interrupts, watching)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return observers


def _tuned(
    resolved: Resolved,
    plan: Plan,
    arguments: list[str],
    spawner: Spawner,
    interrupts: Interrupts,
    console: Console,
) -> tuple[Resolved, Plan]:
    """The settings that trials find fastest, and their plan; a run that was tuned before keeps what it has."""
    if resolved.tuned:
        kept = " ".join(assigned(name, value) for name, value in resolved.tuned.items())
        console.message(
            f"autotune: this run keeps the settings that it was tuned to: {kept}; to tune again, begin anew with "
            "another --experiment or --restart_behavior=restart"
        )
        return resolved, plan
    tuning = Autotune(resolved.config, resolved.given, plan, _seed_of(resolved.config), console)
    tuned = tuning.run(spawner, interrupts)
    command = tuned_command(arguments, tuned.chosen, _from_file(resolved.sources))
    console.message(f"autotune: the same without it: {command}")
    sources = {**resolved.sources, **dict.fromkeys(tuned.chosen, AUTOTUNE)}
    return dataclasses.replace(resolved, config=tuned.config, sources=sources), tuned.plan


def _make_way(config: Config, rundir: RunDir, spawner: Spawner) -> Plan | None:
    """Move an earlier run aside if that is wanted, but not for a run that cannot be planned; returns its plan then."""
    behavior = config.run.restart_behavior
    if behavior == "resume":
        return None
    plan = _plan(config, spawner)
    archive_run(rundir, behavior)
    return plan


def _from_file(sources: Mapping[str, str]) -> list[str]:
    return [name for name, source in sources.items() if source == CONFIG_FILE]


def _saved(rundir: RunDir, config: Config) -> Resumed | None:
    """What is on disk, for a run that was interrupted before it had looked; damage is the next start's matter."""
    try:
        return Resumed.from_checkpoint(rundir, config)
    except CheckpointError:
        return None


def _record(outcome: Outcome, rundir: RunDir) -> None:
    try:
        outcome.summary.write(rundir.summary_path)
    except CannotSaveError as error:
        _log.error("%s", error)


def benchmark(resolved: Resolved, arguments: list[str], spawner: Spawner, interrupts: Interrupts) -> int:
    """Measure throughput and print the result; returns the exit code."""
    resolved = _with_seed(resolved)
    config = resolved.config
    seed = _seed_of(config)
    console = Console(None, None)
    plan = _plan(config, spawner)
    if config.tuning.autotune:
        resolved, plan = _tuned(resolved, plan, arguments, spawner, interrupts, console)
        config = resolved.config
    started = now()
    result = Benchmark(config, plan, console).run(spawner, interrupts, seed)
    console.close(f"RESULT done benchmark of {now() - started:.0f} s")
    print(result.to_json(), flush=True)
    return int(ExitCode.DONE)


def _console(config: Config, rundir: RunDir) -> Console:
    limits = Limits.of(config.run, config.sampling.env_frameskip)
    steps = limits.env_steps * len(learning_policies(config)) if limits.env_steps < _ENDLESS else None
    seconds = limits.seconds if limits.seconds < _ENDLESS else None
    console = Console(steps, seconds, log_path=rundir.log_path if config.report.log_to_file else None)
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(console.handler())
    return console


def _announce(config: Config, plan: Plan, resumed: Resumed | None, rundir: RunDir) -> None:
    layout = plan.layout
    _log.info(
        "%s in %s: %s%d actors x %d envs%s, %s inference on %s, batch of %d steps",
        config.run.env,
        rundir.path,
        _told_of_policies(config, layout),
        layout.num_actors,
        layout.splits * layout.envs,
        f" x {layout.agents} agents" if layout.agents > 1 else "",
        layout.inference,
        plan.device,
        config.learner.batch_size,
    )
    if resumed is not None:
        _log.info("resumed at %d env steps, update %d", resumed.env_steps, resumed.updates)


def _told_of_policies(config: Config, layout: Layout) -> str:
    """Of a run with several policies: how many, who plays, and whether they are bred."""
    if layout.num_policies == 1:
        return ""
    bred = ", population-based training" if config.population.with_pbt else ""
    return f"{layout.num_policies} policies, played by {layout.mapping}{bred}, limits of each its own; "


def _already_finished(config: Config, resumed: Resumed) -> Outcome:
    _log.info(
        "this run is finished: %d env steps in %.0f s of training; raise the limit that it reached "
        "(--train_for_env_steps, --train_for_frames or --train_for_seconds) to go on",
        resumed.env_steps,
        resumed.train_seconds,
    )
    return Outcome("done", _standing(config, resumed, "done"), None)


def _standing(config: Config, resumed: Resumed | None, status: Result) -> Summary:
    """Where a run stands that has done nothing in this session."""
    resumed = resumed or Resumed()
    earlier = resumed.summary
    if earlier is not None and earlier.env_steps == resumed.env_steps:
        return dataclasses.replace(earlier, status=status)
    return Summary(
        status=status,
        env_steps=resumed.env_steps,
        agent_steps=resumed.agent_steps,
        frames=resumed.env_steps * config.sampling.env_frameskip,
        train_seconds=resumed.train_seconds,
        fps=resumed.env_steps / resumed.train_seconds if resumed.train_seconds else None,
        sample_fps=None,
        episodes=0 if earlier is None else earlier.episodes,
        episode_return_mean=None,
        best_episode_return_mean=resumed.best_return,
        episode_length_mean=None,
        policy_lag=PolicyLag(),
        updates=resumed.updates,
    )


def _conclude(outcome: Outcome, to_resume: str, console: Console) -> None:
    """Tell what there is to say about the end."""
    status: Result = outcome.status
    if outcome.error is not None:
        console.message(f"error: {outcome.error}")
    summary = outcome.summary
    line = result_line(
        status,
        env_steps=summary.env_steps,
        return_mean=summary.episode_return_mean,
        cause="" if outcome.error is None else outcome.error.headline,
        saved_env_steps=outcome.saved_env_steps,
        resume_command=to_resume,
    )
    console.close(line)
