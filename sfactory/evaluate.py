"""Evaluates a saved policy: ``python -m sfactory.evaluate --experiment=NAME [flags]``.

stdout carries one JSON line; progress, warnings and what the env prints go to stderr.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sfactory.clock import Every
from sfactory.config.commands import EvaluateConfig, read_evaluate_line
from sfactory.errors import CheckpointError
from sfactory.process.command import Command, CommandModule, importing_torch, return_text
from sfactory.system.cores import set_for_children

if TYPE_CHECKING:
    from sfactory.play.evaluation import Evaluation
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
        from sfactory.process.spawn import Spawner

        Spawner().open()  # the fork server imports torch while this process does
        from sfactory.experiment.saved_policy import SavedPolicy
        from sfactory.play.player import returns_of
        from sfactory.runner.evaluation import EvaluationPlan

    due = Every(_PROGRESS_S)

    def play(saved: SavedPolicy) -> Evaluation:
        shown = 0

        def report(episodes: Sequence[Episode]) -> None:
            nonlocal shown
            if len(episodes) > shown and (due.due() or len(episodes) == config.episodes):
                shown = len(episodes)
                returns = returns_of(episodes)
                mean = return_text(sum(returns) / len(returns) if returns else math.nan)
                text = f"{saved.checkpoint.name}: {len(episodes)} of {config.episodes} episodes, mean return {mean}"
                print(text, file=sys.stderr, flush=True)

        return EvaluationPlan.of(saved, config).run(report)

    if config.checkpoints == "chosen":
        best, others = play(SavedPolicy.load(config)), {}
    else:
        if config.seed is None:
            config = dataclasses.replace(config, seed=secrets.randbits(31))  # the same for all
        found = [play(saved) for saved in SavedPolicy.load_all(config)]
        if not found:
            raise CheckpointError(f"no checkpoint of {config.experiment} can be loaded, see the warnings")
        best = max(found, key=lambda each: -math.inf if math.isnan(each.mean) else each.mean)
        others = {"checkpoints": [_in_short(each.summary()) for each in found]}
    best.warn()
    if config.csv:
        best.write_csv(config.csv)
    return json.dumps({**best.summary(), **others}, allow_nan=False)


def _in_short(summary: Mapping[str, Any]) -> dict[str, Any]:
    names = ("checkpoint", "checkpoint_env_steps", "episode_return_mean", "episode_return_mean_interval")
    return {name: summary[name] for name in names}


sys.modules[__name__].__class__ = CommandModule

if __name__ == "__main__":
    sys.exit(main())
