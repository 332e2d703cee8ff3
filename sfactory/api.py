"""Runs training as a function, for programs that start runs themselves.

It does the same as ``python -m sfactory.train``, with the same files; that command can resume its runs. A script that
calls it needs ``if __name__ == "__main__":`` around its code, since the run's processes import the script.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sfactory.clock import now
from sfactory.config.argv import words_of
from sfactory.config.resolve import Resolved, read_command_line
from sfactory.errors import UNDER_MAIN_GUARD, ConfigError, ExitCode, Refused
from sfactory.experiment.summary import Result, Summary
from sfactory.process.command import importing_torch
from sfactory.process.signals import Interrupted, Interrupts, process_name, set_process_name
from sfactory.system.cores import NATIVE, set_for_children
from sfactory.system.streams import open_standard_streams

if TYPE_CHECKING:
    from sfactory.report.observers import Observer

Row = Mapping[str, float | None]
OnReport = Callable[[Row], bool | None]


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    status: done, or interrupted by a signal, after which a program should not start another run. exit_code: that of the
    command. stopped_early: ``on_report`` ended the run. summary: the content of summary.json.
    """

    status: Result
    exit_code: int
    summary: Summary
    run_dir: Path
    stopped_early: bool = False


def run(flags: Mapping[str, object] | Sequence[str], *, on_report: OnReport | None = None) -> RunResult:
    """Train, as ``python -m sfactory.train`` with these flags does.

    flags: names and values (lists for lists, mappings for JSON objects, None for none, classes and functions for
        ``module:name``), or the words of a command line.
    on_report: called with each row of metrics.jsonl (every ``experiment_summaries_interval`` seconds, and at the end):
    env_steps, and numbers by their names, None where there is none. If it returns False the run ends as at a limit: it
    saves, and the same call resumes it; the command in the last line on stderr resumes it without on_report. An
    exception that it raises ends the run, too, see below.

    Progress goes to stderr. The run handles signals until it returns: Ctrl-C saves and ends it, and the result's status
    is "interrupted". In serial mode the generators of random, numpy and torch are seeded.

    Raises:
        ConfigError: flags are wrong (``problems`` lists all of them), or this process cannot train.
        SFactoryError: the run was refused or has failed; its ``exit_code`` is the command's. An ObserverFailed has the
            exception of ``on_report`` as its cause.
    """
    try:
        with _open_streams():
            return _checked_run(flags, on_report)
    except Refused as error:
        raise error.with_traceback(None) from error.__cause__  # what to do is to be seen, not where it was noticed


def _checked_run(flags: Mapping[str, object] | Sequence[str], on_report: OnReport | None) -> RunResult:
    _require_suitable_process()
    arguments = _arguments(flags)
    resolved = read_command_line(arguments)
    if resolved.config.benchmark.benchmark:
        raise ConfigError(["--benchmark=True: sfactory.run trains; python -m sfactory.train measures"])
    # Only now, so that a mistyped flag is reported before, and the environment variables are set.
    with importing_torch(f"starting {resolved.config.run.env}"):
        from sfactory.runner.session import Session  # noqa: F401

    interrupts = Interrupts()
    try:
        with _restored_process(), interrupts:
            return _run(resolved, arguments, on_report, interrupts)
    finally:
        interrupts.restore()
        gc.collect()  # frees the run's shared memory before the next run allocates its own


def _run(resolved: Resolved, arguments: list[str], on_report: OnReport | None, interrupts: Interrupts) -> RunResult:
    from sfactory.process.spawn import Spawner
    from sfactory.runner.session import Session, summary_of_unopened

    started_at, config = now(), resolved.config
    watching = {} if on_report is None else {"on_report": _observer(on_report)}
    run_dir = (Path(config.run.train_dir) / config.run.experiment).absolute()
    try:
        spawner = Spawner()
        spawner.open()
        outcome = Session(resolved, arguments, spawner, interrupts, started_at).train(watching)
    except Interrupted:  # before the run's directory was looked at
        interrupts.raising = False
        return RunResult("interrupted", interrupts.exit_code, summary_of_unopened(config), run_dir)
    if outcome.error is not None:
        raise outcome.error
    interrupted = outcome.status == "interrupted"
    code = interrupts.exit_code if interrupted else int(ExitCode.DONE)
    return RunResult(outcome.status, code, outcome.summary, run_dir, outcome.stopped_early)


def _observer(on_report: OnReport) -> Observer:
    """An observer that passes rows on."""
    from sfactory.report.observers import Observer

    class Reporter(Observer):
        def on_report(self, row: Row) -> bool | None:
            return on_report(row)

    return Reporter()


def _arguments(flags: Mapping[str, object] | Sequence[str]) -> list[str]:
    """The words of a command line."""
    if isinstance(flags, Mapping):
        return words_of(flags)
    words = [] if isinstance(flags, str) else list(flags)
    if isinstance(flags, str) or not all(isinstance(word, str) for word in words):
        raise ConfigError(["flags must be a mapping of names to values, or a list of words such as --env=CartPole-v1"])
    if "--help" in words or "-h" in words:
        raise ConfigError(["--help: trains nothing; docs/flags.md lists all flags"])
    if any(word.startswith(("--print_config", "--print-config")) for word in words):
        raise ConfigError(["--print_config: trains nothing; python -m sfactory.train prints them"])
    return words


def _require_suitable_process() -> None:
    """Raise ConfigError if this process cannot handle signals or start processes."""
    process, problem, main = multiprocessing.current_process(), "", sys.modules["__main__"]
    file = getattr(main, "__file__", None)  # "<stdin>" if it came from there; not set by python -c
    if threading.current_thread() is not threading.main_thread():
        problem = (
            "sfactory.run must be called in the main thread, where signals arrive; for several runs at a time start "
            "processes (subprocess, or python -m sfactory.launcher), not threads"
        )
    elif getattr(process, "_inheriting", False):  # multiprocessing itself checks this
        if "sfactory.process.fork_server" in sys.modules:
            raise SystemExit(1)  # main, which waits for this process, says the same
        problem = f"sfactory.run was called while a process imports this script; {UNDER_MAIN_GUARD}"
    elif re.match("sf-(?!main)", process_name()):
        problem = f"sfactory.run was called by a module that a process of a run imports; {UNDER_MAIN_GUARD}"
    elif file is not None and getattr(main, "__spec__", None) is None and not os.path.exists(file):
        problem = (
            f"processes of a run import the program that starts it, and {file} is no file; save the program, and type "
            "python and the name of its file"
        )
    elif file is not None and getattr(main, "__spec__", None) is None and b"__name__" not in Path(file).read_bytes():
        problem = f"processes of a run import the script that starts it; {UNDER_MAIN_GUARD}"
    elif process.daemon:
        problem = "sfactory.run starts processes, and this daemonic one may not; start it with daemon=False"
    if problem:
        raise ConfigError([problem])


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
    """Restore what a run changes in its process: name, logging, environment, torch's threads."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    environment = {variable: os.environ.get(variable) for variable in NATIVE}
    torch = sys.modules["torch"]
    threads = torch.get_num_threads()
    set_for_children()
    name = set_process_name("sf-main")
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        set_process_name(name)
        root.handlers[:] = handlers
        root.setLevel(level)
        for variable, value in environment.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
        torch.set_num_threads(threads)
