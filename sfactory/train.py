"""Front door: ``python -m sfactory.train --env=ENV [flags]``. In: argv. Out: files, one JSON line, an exit code.

stdout carries the result alone; everything else goes to stderr, whose last line is ``RESULT ...``.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfactory.clock import now
from sfactory.errors import ConfigError, ExitCode, SFactoryError
from sfactory.process.command import train_command
from sfactory.process.signals import Interrupted, Interrupts, signals_held_back
from sfactory.system.cores import set_for_children

if TYPE_CHECKING:
    from sfactory.experiment.summary import Summary

_STARTED_AT = now()
_PROG = "sfactory.train"


def main(argv: Sequence[str] | None = None) -> int:
    """Train as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    Path("/proc/self/comm").write_text("sf-main")
    set_for_children()
    with Interrupts() as interrupts:
        try:
            return _run(arguments, interrupts)
        except Interrupted:
            interrupts.raising = False
            return _interrupted(arguments, interrupts.exit_code)
        except ConfigError as error:
            return _refuse(error.problems, error.headline, error.exit_code, arguments)
        except SFactoryError as error:
            return _refuse([str(error)], error.headline, error.exit_code, arguments)
        except Exception as error:  # a defect: shown whole, and ended as every other fault is
            traceback.print_exc()
            told = f"{type(error).__name__}: {error}"
            return _refuse([told], told, ExitCode.FAULTS, arguments)


def _interrupted(arguments: Sequence[str], code: int) -> int:
    """A signal came before there was a session: what an earlier one has reached still stands, and is told."""
    from dataclasses import replace

    from sfactory.experiment.summary import result_line

    earlier = _earlier_summary(arguments)
    line = result_line(
        "interrupted",
        env_steps=0 if earlier is None else earlier.env_steps,
        return_mean=None if earlier is None else earlier.episode_return_mean,
        resume_command=train_command(arguments),
    )
    print(line, file=sys.stderr, flush=True)
    if earlier is not None:
        print(replace(earlier, status="interrupted").to_json(), flush=True)
    return code


def _earlier_summary(arguments: Sequence[str]) -> Summary | None:
    """What the last session of the run that ``arguments`` resume has left; None for a benchmark or a fresh run."""
    from sfactory.config.resolve import read_command_line
    from sfactory.experiment.summary import Summary

    try:
        config = read_command_line(arguments, prog=_PROG).config
    except (ConfigError, SystemExit):
        return None
    except Exception as error:  # an env's module whose import the signal cut short may not be importable again
        print(f"what the run has reached could not be read: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    if config.benchmark.benchmark:
        return None
    return Summary.read(Path(config.run.train_dir) / config.run.experiment / "summary.json")


def _refuse(problems: Sequence[str], cause: str, code: int, arguments: Sequence[str]) -> int:
    """Say why a run did not start, or failed before it had anything to sum up."""
    from sfactory.experiment.summary import result_line

    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    line = result_line(
        "failed",
        env_steps=0,
        return_mean=None,
        resume_command=train_command(arguments),
        cause=cause,
    )
    print(line, file=sys.stderr, flush=True)
    return int(code)


def _run(arguments: list[str], interrupts: Interrupts) -> int:
    # A signal inside an import would leave half a module, and the answer to a signal needs these two.
    with signals_held_back():
        import sfactory.experiment.summary  # noqa: F401
        from sfactory.config.resolve import read_command_line

    resolved = read_command_line(arguments, prog=_PROG)
    # Imported only now, so that a mistyped flag is answered at once. torch comes with the session, while the nursery
    # imports it, too; there it calls Python from C++ that ends the process if a signal raises.
    with signals_held_back():
        from sfactory.process.spawn import Spawner

    spawner = Spawner()
    spawner.open()
    with signals_held_back():
        from sfactory.runner import session

    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S")
    if resolved.config.benchmark.benchmark:
        return session.benchmark(resolved, arguments, spawner, interrupts)
    return session.train(resolved, arguments, spawner, interrupts, _STARTED_AT)


if __name__ == "__main__":
    sys.exit(main())
