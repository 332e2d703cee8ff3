"""Room: flags: what is saved, and when. In: nothing. Out: ``CheckpointConfig``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfactory.config.flag import flag


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved, and when."""

    save_every_sec: float = flag(120.0, "seconds between checkpoints", gt=0)
    keep_checkpoints: int = flag(2, "latest checkpoints kept", ge=1)
    save_milestones_sec: float = flag(-1.0, "seconds between checkpoints that are kept for ever; -1 saves none", ge=-1)
    save_best_metric: str = flag(
        "reward", "what the best policy is best at: reward, true_objective, or the name of an extra episode statistic"
    )
    save_best_every_sec: float = flag(5.0, "least seconds between two saves of the best policy", ge=0)
    save_best_after: int = flag(100_000, "env steps before the best policy is saved at all", ge=0)
    load_checkpoint_kind: Literal["latest", "best", "milestone"] = flag(
        "latest", "checkpoint to go on from: the newest, the best policy, or the newest milestone"
    )
