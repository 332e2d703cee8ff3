"""Evaluates a saved policy: ``python -m sfactory.evaluate --experiment=NAME [flags]``.

stdout carries one JSON line; progress, warnings and what the env prints go to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfactory.clock import Every
from sfactory.config.commands import EvaluateConfig, read_evaluate_line
from sfactory.process.command import Command, CommandModule, importing_torch
from sfactory.system.cores import set_for_children

if TYPE_CHECKING:
    from sfactory.play.player import Episode

_PROGRESS_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    set_for_children()
    with Command("sf-evaluate") as command:
        config = read_evaluate_line(arguments)
        command.print_result(lambda: _evaluate(config))
    return command.exit_code


def _evaluate(config: EvaluateConfig) -> str:
    # Imported only now, so that a mistyped flag is reported at once.
    with importing_torch(f"evaluating {config.experiment}"):
        from sfactory.experiment.saved_policy import SavedPolicy
        from sfactory.runner.evaluation import EvaluationPlan

    due = Every(_PROGRESS_S)

    def report(episodes: Sequence[Episode]) -> None:
        if episodes and (due.due() or len(episodes) == config.episodes):
            mean = sum(episode.episode_return for episode in episodes) / len(episodes)
            text = f"{len(episodes)} of {config.episodes} episodes, mean return {mean:.3f}"
            print(text, file=sys.stderr, flush=True)

    evaluation = EvaluationPlan.of(SavedPolicy.load(config), config).run(report)
    if config.csv:
        evaluation.write_csv(config.csv)
    return evaluation.to_json()


sys.modules[__name__].__class__ = CommandModule

if __name__ == "__main__":
    sys.exit(main())
