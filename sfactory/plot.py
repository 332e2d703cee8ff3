"""Draws pictures: ``python -m sfactory.plot curves RUN ...``, ``compare RUN ... vs RUN ...``, ``population RUN``.

stdout gets one JSON line with the result; everything else goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from sfactory.config.commands import COMPARE, POPULATION, Plot, read_plot_line
from sfactory.pbt.plot import draw, read_history
from sfactory.process.command import Command
from sfactory.results.figure import draw_comparison, draw_curves
from sfactory.results.runs import Group, Run, grouped, name_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-plot") as command:
        plot = read_plot_line(arguments)
        command.print_result(lambda: json.dumps({"out": str(plot.out), **_draw(plot)}))
    return command.exit_code


def _draw(plot: Plot) -> dict[str, object]:
    if plot.picture == POPULATION:
        history = read_history(plot.groups[0][0])
        draw(history, plot.out)
        return {
            "policies": len(history.policies),
            "births": len(history.replacements),
            "hyperparameters": len(history.traces),
        }
    how = plot.settings.metric, plot.settings.over, plot.settings.label, plot.out
    if plot.picture == COMPARE:
        first, second = ([Run(path) for path in group] for group in plot.groups)
        return draw_comparison((Group(name_of(first), first, {}), Group(name_of(second), second, {})), *how)
    return draw_curves(grouped([Run(path) for path in plot.groups[0]]), *how)


if __name__ == "__main__":
    sys.exit(main())
