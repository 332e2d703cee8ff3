"""Runs the main process of every command up to its exit code, and writes command lines that users can repeat."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Self

from sfactory import __version__
from sfactory.config.env_names import env_name_of
from sfactory.config.flags import all_flags, assigned
from sfactory.config.saved_config import OF_ONE_START, OF_TUNING
from sfactory.config.trust import TRUST
from sfactory.errors import MOST_OF_REPORT, ConfigError, ExitCode, Refused, SFactoryError, clean, named, traceback_of
from sfactory.process.signals import Interrupted, Interrupts, set_process_name, signals_held_back, stdout_to_stderr
from sfactory.system.operating_system import POSIX
from sfactory.system.streams import open_standard_streams

_NOT_REPEATED = OF_ONE_START - {TRUST}  # a run needs its code whenever it is resumed


class Command:
    """The main process of a command, as a context: handles signals, and turns errors into messages and an exit code.

    process_name: as ``ps`` shows it. interrupts: the signals that came. exit_code: of the process; 0 if it is not set.
    """

    def __init__(self, process_name: str) -> None:
        open_standard_streams()  # before anything else is opened
        self._process_name = process_name
        self.interrupts = Interrupts()
        self.exit_code = int(ExitCode.DONE)

    def __enter__(self) -> Self:
        self._name_before = set_process_name(self._process_name)
        self.interrupts.__enter__()
        if POSIX:  # if SIGCHLD is ignored, the exit codes of all programs are read as 0
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            os.getcwd()
        except FileNotFoundError:
            self._handles(ConfigError(["the current directory no longer exists; change to one that does (cd)"]))
            raise SystemExit(self.exit_code) from None
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        try:
            return self._handles(error)
        finally:
            self.interrupts.__exit__()
            set_process_name(self._name_before)  # a process may call several commands, and sfactory.run

    def print_result(self, work: Callable[[], str]) -> None:
        """Print the line that ``work`` returns on stdout; until then everything that is printed goes to stderr."""
        logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(levelname)s: %(message)s", datefmt="%H:%M:%S")
        try:
            with stdout_to_stderr():  # modules print when they are imported, envs at any time
                line = work()
        except SystemExit as error:  # foreign code may call sys.exit; that must not look like a result
            raise SFactoryError(
                f"the env, or a library that it uses, raised {named(error)}: there is no result"
            ) from error
        print(line, flush=True)

    def _handles(self, error: BaseException | None) -> bool:
        """Report ``error`` and set the exit code; False if there is none, or a SystemExit for Python."""
        if isinstance(error, Interrupted):
            self.interrupts.raising = self.interrupts.raising_again = False
            self.exit_code = self.interrupts.exit_code
            self.on_interrupt()
        elif isinstance(error, SFactoryError):
            if error.exit_code is ExitCode.FAULTS and error.__cause__ is not None:
                print(traceback_of(error.__cause__), end="", file=sys.stderr)  # the exception of the env
            self.exit_code = int(error.exit_code)
            for problem in error.problems if isinstance(error, ConfigError) else [str(error)]:
                print(f"error: {clean(problem, MOST_OF_REPORT)}", file=sys.stderr, flush=True)
            once = isinstance(error, Refused) or str(error) == error.headline
            self.on_failure("" if once else error.headline)
        elif error is not None and not isinstance(error, SystemExit):  # a defect: shown whole, ended like every fault
            print(traceback_of(error), end="", file=sys.stderr)
            self.exit_code = int(ExitCode.FAULTS)
            self.on_failure(named(error))
        else:
            return False
        return True

    def on_interrupt(self) -> None:
        """Called when a signal ended the work; prints the last line on stderr."""
        print("interrupted before there was a result", file=sys.stderr, flush=True)

    def on_failure(self, cause: str) -> None:
        """Called at the end of a failure. ``cause``: what was raised, where only a traceback was printed."""
        if cause:
            print(f"error: {cause}", file=sys.stderr, flush=True)


class CommandModule(ModuleType):
    """A module of a command that has the name of a function, too: both are ``sfactory.train``, and can be called.

    Python puts a module, once it is imported, in the place of the function in its package.
    """

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function of this name."""
        function = getattr(import_module("sfactory.api"), self.__name__.rpartition(".")[2])
        return function(*arguments, **keywords)


@contextlib.contextmanager
def importing_torch(doing: str) -> Iterator[None]:
    """For imports, which take seconds: a line says so, and what the command is ``doing``, if that is not empty.

    A signal is answered by a line, and handled when the block ends: one that raises inside an import of torch may end
    the process without a message, as torch calls Python from C++.
    """
    takes = "" if "torch" in sys.modules else " (importing torch takes some seconds)"
    if doing:
        print(f"sfactory {__version__}: {doing}{takes}", file=sys.stderr, flush=True)
    with signals_held_back("torch is imported"):
        yield


def show_result(values: Mapping[str, object]) -> None:
    """Print a result on stdout: as one line of JSON, or on a terminal as lines for people to read."""
    print(_readable(values) if sys.stdout.isatty() else json.dumps(values, allow_nan=False), flush=True)


def _readable(values: Mapping[str, object]) -> str:
    """One line for each name, folded where it is longer than 80 columns."""
    lines: list[str] = []
    for name, value in values.items():
        lines += textwrap.wrap(
            f"  {name.replace('_', ' '):<34}{_words(value)}", 80, subsequent_indent=" " * 36, break_on_hyphens=False
        )
    return "\n".join(lines)


def _words(value: object) -> str:
    """Numbers with few digits and commas, lists and mappings in one line, a dash for what is unknown or empty."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items()) or "-"
    if isinstance(value, list | tuple):
        return "; ".join(map(_words, value)) or "-"
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value)
    return number(value) if isinstance(value, int | float) else str(value)


def number(value: float | None) -> str:
    """A number in few characters; a dash if it is unknown."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def return_text(value: float | None) -> str:
    """A return in a line of text: three decimals, from 1000 on none; a dash if it is unknown."""
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3f}"


def train_command(arguments: Sequence[str]) -> str:
    """The command that starts a run with these arguments, whose env has its full name: it means the same later.

    "" if they name what only a program without a file has, such as a notebook: no command starts that run.
    """
    words = list(arguments)
    if any("__main__:" in word for word in words):
        return ""
    for at, word in enumerate(words):
        if word.startswith("--env="):
            words[at] = f"--env={env_name_of(word.removeprefix('--env='))}"
        elif at and words[at - 1] == "--env":
            words[at] = env_name_of(word)
    return shlex.join([sys.executable, "-m", "sfactory.train", *words])


def resume_command(arguments: Sequence[str], from_file: Collection[str] = ()) -> str:
    """The command that resumes a run that was started with ``arguments``, always from its latest checkpoint; or "".

    ``from_file``: names of the flags that the config file sets; those that are for one start only are overridden.
    """
    return train_command([*without(arguments, _NOT_REPEATED), *_overrides(_NOT_REPEATED, from_file)])


def tuned_command(arguments: Sequence[str], chosen: Mapping[str, object], from_file: Collection[str] = ()) -> str:
    """The command that trains with the settings that autotune has ``chosen``, and the other ``arguments``; or "".

    ``from_file``: as for ``resume_command``.
    """
    kept = without(arguments, OF_TUNING | chosen.keys())
    settings = [assigned(name, value) for name, value in chosen.items()]
    return train_command([*kept, *settings, *_overrides(OF_TUNING, from_file)])


def without(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """``arguments`` less those ``flags`` and their values."""
    kept: list[str] = []
    dropping = False
    for word in arguments:
        # The value of a flag may follow in words of its own, none of which begins with two dashes.
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("-", "_") in flags
        if not dropping:
            kept.append(word)
    return kept


def _overrides(flags: Collection[str], from_file: Collection[str]) -> list[str]:
    """Flags that set the default where the config file sets another value."""
    return [assigned(flag, all_flags()[flag].default) for flag in sorted(set(flags).intersection(from_file))]
