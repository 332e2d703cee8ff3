"""Merges the parts of evaluations that evaluators report into one result per evaluation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import reduce

from sfactory.messages import EpisodeTotals, EvaluationPart
from sfactory.process.command import return_text

VIDEO = "eval/video"  # what trackers call the video of an evaluation


@dataclass(frozen=True)
class EvaluationReport:
    """The result of one evaluation; field names are keys of summary.json's ``evaluation``.

    policy_env_steps: those for which the policy had been trained. Returns are raw; None if no return is finite.
    true_objective_mean: None if the env reports none.
    """

    policy_version: int
    policy_env_steps: int
    episodes: int
    episode_return_mean: float | None
    episode_return_min: float | None
    episode_return_max: float | None
    episode_length_mean: float
    true_objective_mean: float | None

    @staticmethod
    def of(parts: Sequence[EvaluationPart]) -> EvaluationReport:
        """Merge the parts of all evaluators for the same policy version."""
        ((version, env_steps),) = {(part.policy_version, part.policy_env_steps) for part in parts}
        totals = reduce(EpisodeTotals.merged, (part.totals for part in parts))
        finite, objectives = totals.finite, totals.objectives
        return EvaluationReport(
            policy_version=version,
            policy_env_steps=env_steps,
            episodes=totals.episodes,
            episode_return_mean=totals.return_sum / finite if finite else None,
            episode_return_min=totals.return_min if finite else None,
            episode_return_max=totals.return_max if finite else None,
            episode_length_mean=totals.length_sum / totals.episodes,
            true_objective_mean=totals.objective_sum / objectives if objectives else None,
        )

    def scalars(self) -> dict[str, float | None]:
        """Scalars ``eval/...`` for metrics.jsonl and TensorBoard, the true objective only if there is one."""
        scalars = {f"eval/{name}": value for name, value in asdict(self).items()}
        if self.true_objective_mean is None:
            del scalars["eval/true_objective_mean"]
        return scalars

    def __str__(self) -> str:
        """One line for the console."""
        mean = self.true_objective_mean
        objective = "" if mean is None else f", true objective {return_text(mean)}"
        return (
            f"evaluation of the policy after {self.policy_env_steps:,} env steps (version {self.policy_version}): "
            f"return {return_text(self.episode_return_mean)} ({return_text(self.episode_return_min)} to "
            f"{return_text(self.episode_return_max)}){objective}, length {self.episode_length_mean:.1f}, "
            f"{self.episodes} episodes"
        )


EVALUATION_NAMES = tuple(f"eval/{each.name}" for each in fields(EvaluationReport))


class EvaluationReports:
    """Collects parts of evaluations. One thread adds them, another takes complete evaluations."""

    def __init__(self, evaluators: int) -> None:
        self._evaluators = evaluators
        self._number = 0
        self._parts: dict[int, EvaluationPart] = {}
        self._complete: list[tuple[int, EvaluationReport]] = []
        self._lock = threading.Lock()
        self.last: EvaluationReport | None = None

    def add(self, part: EvaluationPart) -> None:
        """Add one evaluator's part; the next evaluation starts when the current one is complete.

        One that has come before is left out: an evaluator was killed before it knew that its part was reported.
        """
        with self._lock:
            if part.number != self._number:
                self._number, self._parts = part.number, {}
            if part.evaluator in self._parts:
                return
            self._parts[part.evaluator] = part
            if self.is_complete(part.number):
                self.last = EvaluationReport.of(list(self._parts.values()))
                self._complete.append((part.number, self.last))

    def is_complete(self, number: int) -> bool:
        """Whether all parts of evaluation ``number``, the newest, have arrived."""
        return number == self._number and len(self._parts) == self._evaluators

    def take(self) -> list[tuple[int, EvaluationReport]]:
        """Evaluations completed since the last call, with their numbers."""
        with self._lock:
            complete, self._complete = self._complete, []
        return complete
