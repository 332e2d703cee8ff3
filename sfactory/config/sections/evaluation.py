"""Room: flags: playing episodes beside training. In: nothing. Out: ``EvaluationConfig``."""

from __future__ import annotations

from dataclasses import dataclass

from sfactory.config.flag import flag


@dataclass(frozen=True)
class EvaluationConfig:
    """Playing episodes with the policy while it is trained, in processes and environments of their own."""

    eval_interval_sec: float = flag(0.0, "seconds between the starts of two evaluations; 0: none is made", ge=0)
    eval_workers: int = flag(1, "processes that play the episodes of an evaluation", ge=1, le=64)
    eval_episodes: int = flag(10, "whole episodes of one evaluation, over all its workers", ge=1)
    eval_deterministic: bool = flag(
        True, "an evaluation takes the most probable action; False draws actions at random as training does"
    )
