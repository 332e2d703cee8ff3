"""``python -m sfactory.plot population RUN`` draws the population of a run.

stdout gets one JSON line with the result; everything else goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from sfactory.config.commands import Plot, read_plot_line
from sfactory.errors import ExitCode
from sfactory.pbt.plot import draw, read_history
from sfactory.process.command import result_of, run_command

_PROG = "sfactory.plot"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command("sf-plot", lambda interrupts: _run(read_plot_line(arguments, prog=_PROG)))


def _run(plot: Plot) -> int:
    print(result_of(lambda: _result(plot)), flush=True)
    return int(ExitCode.DONE)


def _result(plot: Plot) -> str:
    history = read_history(plot.run_dir)
    draw(history, plot.out)
    drawn = {
        "policies": len(history.policies),
        "births": len(history.replacements),
        "hyperparameters": len(history.traces),
    }
    return json.dumps({"out": str(plot.out), **drawn})


if __name__ == "__main__":
    sys.exit(main())
