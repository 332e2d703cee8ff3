"""Runs training as a function, for programs that start runs themselves.

It does the same as ``python -m sfactory.train``, with the same files; that command can resume its runs. A script that
calls it needs ``if __name__ == "__main__":`` around its code, since the run's processes import the script. What a
program without a file defines, such as a notebook, is sent to them.

NOTE [Threads of a program]: any thread may call, but one at a time, as a call changes what belongs to the process: its
name, environment, streams and logging. Outside the main thread no signal is handled, as none arrives there.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from sfactory.clock import now
from sfactory.config.argv import PRINT_CONFIG, asks_for_help, scan, words_of
from sfactory.config.commands import read_evaluate_line
from sfactory.config.flags import all_flags, values_of
from sfactory.config.import_strings import objects_of_program
from sfactory.config.resolve import read_command_line
from sfactory.errors import UNDER_MAIN_GUARD, ConfigError, ExitCode, Refused
from sfactory.experiment.summary import RunResult as RunResult
from sfactory.process.command import importing_torch
from sfactory.process.signals import Interrupted, Interrupts, process_name, set_process_name
from sfactory.ranks.place import ONE_RANK
from sfactory.ranks.rules import for_rank
from sfactory.system.cores import NATIVE, set_for_children
from sfactory.system.streams import open_standard_streams

if TYPE_CHECKING:
    from sfactory.config.schema import Config
    from sfactory.play.evaluation import Evaluation
    from sfactory.play.policy import Policy
    from sfactory.process.spawn import Spawner
    from sfactory.report.observers import Observer
    from sfactory.runner.sampler import Sampler
    from sfactory.runner.session import Session

Row = Mapping[str, float | None]
OnReport = Callable[[Row], bool | None]
AnyObserver: TypeAlias = "Observer | type[Observer] | str"
_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")
_AT_WORK = threading.RLock()  # of the thread that has called


def _refusing_briefly(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """``function``, whose refusals show what to do, and not where it was noticed."""

    @functools.wraps(function)
    def briefly(*arguments: _Given.args, **keywords: _Given.kwargs) -> _Found:
        try:
            return function(*arguments, **keywords)
        except Refused as error:
            raise error.with_traceback(None) from error.__cause__

    return briefly


@_refusing_briefly
def run(flags: Mapping[str, object] | Sequence[str], *, on_report: OnReport | None = None) -> RunResult:
    """Train, as ``python -m sfactory.train`` with these flags does.

    flags: names and values (lists for lists, mappings for JSON objects, None for none, classes and functions for
        ``module:name``), or the words of a command line.
    on_report: called with each row of metrics.jsonl (every ``experiment_summaries_interval`` seconds, and at the end):
    env_steps, and numbers by their names, None where there is none: an evaluation has a row of its own, where all is
    None but its numbers, eval/..., which are None in other rows. If it returns False the run ends as at a limit: it
    saves, and the same call resumes it; the command in the last line on stderr resumes it without on_report. An
    exception that it raises ends the run, too, see below.

    Progress goes to stderr. The run handles signals until it returns: Ctrl-C saves and ends it, and the result's status
    is "interrupted". In another thread than the main one no signal comes: limits or ``on_report`` end it. In serial
    mode the generators of random, numpy and torch are seeded.

    Raises:
        ConfigError: flags are wrong (``problems`` lists all of them), or this process cannot train.
        SFactoryError: the run was refused or has failed; its ``exit_code`` is the command's. An ObserverFailed has the
            exception of ``on_report`` as its cause.
    """
    return _checked_run("sfactory.run", flags, on_report, {})


@_refusing_briefly
def train(
    *,
    env: str | Callable[..., object] | None = None,
    encoder: str | Callable[..., object] | None = None,
    observers: AnyObserver | Iterable[AnyObserver] | None = (),
    on_report: OnReport | None = None,
    **flags: object,
) -> RunResult:
    """As ``run``, with flags as arguments: ``sfactory.train(env=MyEnv, encoder=MyEncoder, train_for_seconds=60)``.

    env: an id, the name of a family, or a class or function that returns an env; also one of the script or notebook.
    encoder: see docs/own_agent.md.
    observers: objects, which stay in this process, classes or names; or one of these.
    """
    watching: dict[str, Observer] = {}
    named: list[object] = []
    for place, each in enumerate(_each_of(observers)):
        if isinstance(each, str | type):
            named.append(each)
        else:
            watching[f"{type(each).__qualname__} ({place})"] = each
    given = {"env": env, "encoder": encoder, "observers": named}
    flags = {**{name: value for name, value in given.items() if value}, **flags}
    return _checked_run("sfactory.train", flags, on_report, watching)


@_refusing_briefly
def evaluate(
    policy: str | Path | RunResult | Policy,
    episodes: int = 100,
    *,
    workers: int = 0,
    env_kwargs: Mapping[str, object] | None = None,
    deterministic: bool = False,
    seed: int | None = None,
    env: str | Callable[..., object] = "",
    trust_run_dir: bool = False,
) -> Evaluation:
    """Play exactly so many whole episodes with a saved policy, in processes that have an equal share each.

    policy: what ``sfactory.load`` returns or takes: the folder of a run or its RunResult, a checkpoint, an exported
        file. workers: how many processes; 0: one per core, and per ten episodes. env_kwargs: of the env, beside those
        of the run.
    deterministic: the most probable actions. seed: of envs and actions; drawn at random by default.
    env: the run's env again, if it is code of your own, or another one with the same spaces, which is made with
        ``env_kwargs`` alone, in the run's wrappers. trust_run_dir=True runs all code that the run's files name.

    Raises EnvError if the env cannot be made or hangs, EnvFaults if it fails, and the errors of ``sfactory.load``.
    """
    _require_suitable_process("sfactory.evaluate")
    with _alone("sfactory.evaluate"), _open_streams():
        from sfactory.process.spawn import Spawner

        with _variables_of_children():
            Spawner().open()  # the fork server imports torch while this process does
        from sfactory.play.policy import Policy, find_saved
        from sfactory.runner.evaluation import EvaluationPlan

        saved = policy.saved if isinstance(policy, Policy) else find_saved(policy, trust_run_dir=trust_run_dir)
        given = {"episodes": episodes, "workers": workers, "env_kwargs": env_kwargs or {}, "seed": seed, "env": env}
        trusted = trust_run_dir or saved.wanted.trust_run_dir
        run = {"experiment": "run", "trust_run_dir": trusted, "eval_deterministic": deterministic}
        config = read_evaluate_line(words_of({**given, **run}))
        with _restored_process():
            found = EvaluationPlan.of(saved, config).run()
            found.warn()
            return found


@contextlib.contextmanager
def sampler(
    *,
    env: str | Callable[..., object] | None = None,
    encoder: str | Callable[..., object] | None = None,
    **flags: object,
) -> Iterator[Sampler]:
    """A context in which actors sample for a program that learns by an algorithm of its own.

        with sfactory.sampler(env="CartPole-v1", batch_size=4096) as sampler:
            for batch in sampler:
                ...  # learn from batch.rewards: [T, B], batch.obs: [T+1, B, ...], and so on: see Trajectories
                sampler.set_weights(model.state_dict())

    ``env``, ``encoder`` and ``flags``: as for ``train``; those of learning have no effect, but for the size of a
    batch and the weights of ``init_from``. Limits do not end it, and what only a run does, such as calling observers,
    is refused. Nothing is written to disk. Signals are left to the program. For one policy, serial (which seeds
    torch's generator) and parallel.

    Raises ConfigError and EnvError before it starts; iterating raises the fault that ends the workers.
    """
    _require_suitable_process("sfactory.sampler")
    named = [each if isinstance(each, str | type) else type(each) for each in _each_of(flags.pop("observers", None))]
    given = {"env": env, "encoder": encoder, "observers": named}
    flags = {**{name: value for name, value in given.items() if value}, **flags}
    # No run is resumed, and a batch has batch_size steps.
    flags = {"restart_behavior": "restart", **flags, "num_batches_per_epoch": 1}
    resolved = for_rank(read_command_line(_arguments(flags)), ONE_RANK)
    with _alone("sfactory.sampler"), _open_streams():
        spawner, unused = _open_spawner(resolved.config, "sampling"), Interrupts()
        from sfactory.runner.session import Session

        try:
            with _restored_process():
                opened = Session(resolved, [], spawner, unused, now()).sampler()
        finally:
            unused.restore()
    with contextlib.closing(opened):
        yield opened


def _each_of(observers: Any) -> Iterable[AnyObserver]:
    if observers is None:
        return ()
    if isinstance(observers, str | type):
        return (observers,)
    return observers if isinstance(observers, Iterable) else (observers,)


def _checked_run(
    called: str,
    flags: Mapping[str, object] | Sequence[str],
    on_report: OnReport | None,
    observers: Mapping[str, Observer],
) -> RunResult:
    """``called``: the name of the function, for errors."""
    with _alone(called), _open_streams():
        _require_suitable_process(called)
        arguments = _arguments(flags)
        resolved = for_rank(read_command_line(arguments), ONE_RANK)
        if resolved.config.benchmark.benchmark:
            raise ConfigError([f"--benchmark=True: {called} trains; python -m sfactory.train measures"])
        started_at, spawner, interrupts = now(), _open_spawner(resolved.config, "starting"), Interrupts()
        from sfactory.runner.session import Session

        try:
            with _restored_process(), interrupts:
                watching = {**observers, **({} if on_report is None else {"on_report": _observer(on_report)})}
                session = Session(resolved, arguments, spawner, interrupts, started_at)
                return _run(session, resolved.config, watching, interrupts)
        finally:
            interrupts.restore()
            gc.collect()  # frees the run's shared memory before the next run allocates its own


def _open_spawner(config: Config, doing: str) -> Spawner:
    """Start the fork server, which imports torch while this process does. ``doing``: in words.

    Only once flags are read, so that a mistyped one is reported at once. The thread pool of this process's torch is
    that of the program.
    """
    with importing_torch("" if config.report.quiet else f"{doing} {config.run.env}"):
        from sfactory.process.spawn import Spawner

        with _variables_of_children():
            spawner = Spawner(objects_of_program(values_of(config).values()), config.report.printed_level)
            spawner.open()
        import sfactory.runner.session  # noqa: F401
    return spawner


def _run(session: Session, config: Config, watching: Mapping[str, Observer], interrupts: Interrupts) -> RunResult:
    from sfactory.runner.session import summary_of_unopened

    run_dir = (Path(config.run.train_dir) / config.run.experiment).absolute()
    try:
        outcome = session.train(watching)
    except Interrupted:  # before the run's directory was looked at
        interrupts.raising = False
        return RunResult("interrupted", interrupts.exit_code, summary_of_unopened(config), run_dir, trained=False)
    if outcome.error is not None:
        raise outcome.error
    interrupted = outcome.status == "interrupted"
    code = interrupts.exit_code if interrupted else int(ExitCode.DONE)
    return RunResult(outcome.status, code, outcome.summary, run_dir, outcome.stopped_early, session.has_begun)


def _observer(on_report: OnReport) -> Observer:
    """An observer that passes rows on."""
    from sfactory.report.observers import Observer

    class Reporter(Observer):
        def on_report(self, row: Row) -> bool | None:
            return on_report(row)

    return Reporter()


def _arguments(flags: Mapping[str, object] | Sequence[str]) -> list[str]:
    """The words of a command line. Raises ConfigError for those that would print something and end the program."""
    words = [] if isinstance(flags, str) else words_of(flags) if isinstance(flags, Mapping) else list(flags)
    if isinstance(flags, str) or not all(isinstance(word, str) for word in words):
        raise ConfigError(["flags must be a mapping of names to values, or a list of words such as --env=CartPole-v1"])
    if asks_for_help(words):
        raise ConfigError(["--help: starts nothing; docs/flags.md lists all flags"])
    if scan(words, {**all_flags(), PRINT_CONFIG.name: PRINT_CONFIG}).values.get(PRINT_CONFIG.name):
        raise ConfigError(["--print_config: starts nothing; python -m sfactory.train prints them"])
    return words


def _require_suitable_process(called: str) -> None:
    """Raise ConfigError if this process cannot start processes; it has called ``called``."""
    process, problem, main = multiprocessing.current_process(), "", sys.modules["__main__"]
    file = getattr(main, "__file__", None)  # "<stdin>" if it came from there; not set by python -c
    if getattr(process, "_inheriting", False):  # multiprocessing itself checks this
        if "sfactory.process.fork_server" in sys.modules:
            raise SystemExit(1)  # main, which waits for this process, says the same
        problem = f"{called} was called while a process imports this script; {UNDER_MAIN_GUARD}"
    elif re.match("sf-(?!main)", process_name()):
        problem = f"{called} was called by a module that a process of a run imports; {UNDER_MAIN_GUARD}"
    elif file is not None and getattr(main, "__spec__", None) is None and not os.path.exists(file):
        problem = (
            f"processes of a run import the program that starts it, and {file} is no file; save the program, and type "
            "python and the name of its file"
        )
    elif file is not None and getattr(main, "__spec__", None) is None and b"__name__" not in Path(file).read_bytes():
        problem = f"processes of a run import the script that starts it; {UNDER_MAIN_GUARD}"
    elif process.daemon:
        problem = f"{called} starts processes, and this daemonic one may not; start it with daemon=False"
    if problem:
        raise ConfigError([problem])


@contextlib.contextmanager
def _alone(called: str) -> Iterator[None]:
    """Raise ConfigError if another thread has called, see NOTE [Threads of a program]."""
    if not _AT_WORK.acquire(blocking=False):
        raise ConfigError(
            [
                f"{called}: another thread of this process is at work here; for several at a time start processes, "
                'such as subprocess.run([sys.executable, "-m", "sfactory.train", "--env=CartPole-v1"])'
            ]
        )
    try:
        yield
    finally:
        _AT_WORK.release()


@contextlib.contextmanager
def _open_streams() -> Iterator[None]:
    """Open and bound the standard streams, before anything else is opened or printed, and restore them."""
    streams = sys.stdout, sys.stderr
    open_standard_streams()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


@contextlib.contextmanager
def _restored_process() -> Iterator[None]:
    """Restore what a run changes in its process: name, logging, environment, torch's threads, cuDNN's choices."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    torch = sys.modules["torch"]
    threads, chooses = torch.get_num_threads(), torch.backends.cudnn.benchmark
    name = set_process_name("sf-main")
    root.setLevel(logging.INFO)
    try:
        with _variables_of_children():
            yield
    finally:
        set_process_name(name)
        root.handlers[:] = handlers
        root.setLevel(level)
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = chooses


@contextlib.contextmanager
def _variables_of_children() -> Iterator[None]:
    """Set the environment variables that native libraries of children read, for so long."""
    before = {variable: os.environ.get(variable) for variable in NATIVE}
    set_for_children()
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
