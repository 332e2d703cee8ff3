"""Room: how a command beside train ends. In: its work. Out: an exit code, and on stderr why there is no result."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from sfactory.errors import ConfigError, ExitCode, SFactoryError, named
from sfactory.runtime.signals import Interrupted, Interrupts
from sfactory.runtime.stdout import stdout_to_stderr


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
