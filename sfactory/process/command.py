"""Room: how a command beside train ends. In: its work. Out: an exit code, and on stderr why there is no result.

Room: the command lines that a run tells its user. In: the arguments of a session. Out: one line for a shell.
"""

from __future__ import annotations

import logging
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from sfactory.config.flags import all_flags, assigned
from sfactory.config.saved_config import OF_ONE_START, OF_TUNING
from sfactory.errors import ConfigError, ExitCode, SFactoryError, named
from sfactory.process.signals import Interrupted, Interrupts, stdout_to_stderr


def run_command(process_name: str, work: Callable[[Interrupts], int]) -> int:
    """Do ``work`` under a name for ps; returns its exit code, or that of the error or signal that ended it."""
    Path("/proc/self/comm").write_text(process_name)
    with Interrupts() as interrupts:
        try:
            return work(interrupts)
        except Interrupted:
            interrupts.raising = interrupts.raising_again = False
            print("interrupted before there was a result", file=sys.stderr, flush=True)
            return interrupts.exit_code
        except ConfigError as error:
            return _refuse(error.problems, error.exit_code)
        except SFactoryError as error:
            if error.exit_code is ExitCode.FAULTS and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)  # whatever the env raised
            return _refuse([str(error)], error.exit_code)
        except Exception as error:  # a defect: shown whole, and ended as every other fault is
            traceback.print_exc()
            return _refuse([named(error)], ExitCode.FAULTS)


def result_of(work: Callable[[], str]) -> str:
    """The line that ``work`` has for stdout; until it is there, all that is printed goes to stderr."""
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(levelname)s: %(message)s", datefmt="%H:%M:%S")
    try:
        with stdout_to_stderr():  # modules print when they are imported, envs whenever they like
            return work()
    except SystemExit as error:  # foreign code may call sys.exit; that must not look like a result
        raise SFactoryError(f"the env, or a library that it uses, raised {named(error)}: there is no result") from error


def _refuse(problems: Sequence[str], code: ExitCode) -> int:
    """Say why there is no result."""
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr, flush=True)
    return int(code)


def train_command(arguments: Sequence[str]) -> str:
    """The command that starts a run with these arguments."""
    return shlex.join([sys.executable, "-m", "sfactory.train", *arguments])


def resume_command(arguments: Sequence[str], from_file: Collection[str] = ()) -> str:
    """The command that goes on with a run started with ``arguments``: from its latest checkpoint, always.

    ``from_file``: names of the flags that the config file sets; what is said there of one start is countermanded.
    """
    return train_command([*without(arguments, OF_ONE_START), *_countermanded(OF_ONE_START, from_file)])


def tuned_command(arguments: Sequence[str], chosen: Mapping[str, object], from_file: Collection[str] = ()) -> str:
    """The command that does what ``arguments`` ask for with the settings that autotune has ``chosen``, untuned.

    ``from_file`` is as for ``resume_command``.
    """
    kept = without(arguments, OF_TUNING | chosen.keys())
    settings = [assigned(name, value) for name, value in chosen.items()]
    return train_command([*kept, *settings, *_countermanded(OF_TUNING, from_file)])


def without(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """``arguments`` less those ``flags`` and their values."""
    kept: list[str] = []
    dropping = False
    for word in arguments:
        # A flag's value may follow in words of their own, none of which begins with two dashes.
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("-", "_") in flags
        if not dropping:
            kept.append(word)
    return kept


def _countermanded(flags: Collection[str], from_file: Collection[str]) -> list[str]:
    """Flags that say the default where a config file says something else."""
    return [assigned(flag, all_flags()[flag].default) for flag in sorted(set(flags).intersection(from_file))]
