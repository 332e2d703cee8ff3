"""Draws the history of a population: ``python -m sfactory.plot population RUN``.

stdout gets one JSON line with the result; everything else goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from sfactory.config.commands import Plot, read_plot_line
from sfactory.pbt.plot import draw, read_history
from sfactory.process.command import Command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-plot") as command:
        plot = read_plot_line(arguments)
        command.print_result(lambda: _draw(plot))
    return command.exit_code


def _draw(plot: Plot) -> str:
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
