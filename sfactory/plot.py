"""Draws pictures: ``python -m sfactory.plot curves RUN ...``, ``compare RUN ... vs RUN ...``, ``population RUN``.

stdout gets one JSON line with the result; everything else goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from sfactory.config.commands import COMPARE, POPULATION, Plot, plot_flags, read_plot_line
from sfactory.config.flags import assigned
from sfactory.errors import ConfigError
from sfactory.pbt.plot import draw, read_history
from sfactory.process.command import Command
from sfactory.results.figure import draw_comparison, draw_curves
from sfactory.results.runs import Run, grouped, labelled


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-plot") as command:
        plot = read_plot_line(arguments)
        command.print_result(lambda: json.dumps({"out": str(plot.out), **_draw(plot)}))
    return command.exit_code


def _draw(plot: Plot) -> dict[str, object]:
    if plot.picture == POPULATION:
        values = {name: getattr(plot.settings, name) for name in ("metric", "over", "label")}
        idle = [assigned(name, value) for name, value in values.items() if value != plot_flags[name].default]
        if idle:
            raise ConfigError([f"{each}: is for curves and compare; leave it out" for each in idle])
        history = read_history(plot.groups[0][0])
        draw(history, plot.out)
        return {
            "policies": len(history.policies),
            "births": len(history.replacements),
            "hyperparameters": len(history.traces),
        }
    how = plot.settings.metric, plot.settings.over, plot.settings.label, plot.out
    if plot.picture == COMPARE:
        first, second = labelled([[Run(path) for path in group] for group in plot.groups])
        return draw_comparison((first, second), *how)
    return draw_curves(grouped([Run(path) for path in plot.groups[0]]), *how)


if __name__ == "__main__":
    sys.exit(main())
