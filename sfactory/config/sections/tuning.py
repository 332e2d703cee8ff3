"""Room: flags: finding fast settings before the run. In: nothing. Out: ``TuningConfig``."""

from __future__ import annotations

from dataclasses import dataclass

from sfactory.config.flag import flag


@dataclass(frozen=True)
class TuningConfig:
    """Finding fast settings before the run."""

    autotune: bool = flag(
        False,
        "find fast settings for this machine and environment by short measured trials, and keep them for the run: "
        "num_workers, num_envs_per_worker, worker_num_splits, inference and learner_num_threads, except those that the "
        "command line or the config file sets",
    )
    autotune_seconds: float = flag(3.0, "length of each trial's measurement, start-up and warm-up apart", ge=0.1, le=60)
    autotune_batch: bool = flag(
        False, "with autotune: try larger and smaller batch_size, too, which changes what is learned from each step"
    )
