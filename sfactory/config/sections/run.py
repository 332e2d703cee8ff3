"""Room: flags: what to train, where to keep it, and when to stop. In: nothing. Out: ``RunConfig``.

Room: flags: what is reported, and when. In: nothing. Out: ``ReportConfig``.

Room: flags: what is saved, and when. In: nothing. Out: ``CheckpointConfig``.

Room: flags: playing episodes beside training. In: nothing. Out: ``EvaluationConfig``.

Room: flags: code of the user's that a run calls. In: nothing. Out: ``HooksConfig``.

Room: flags: measuring instead of training. In: nothing. Out: ``BenchmarkConfig``.

Room: flags: finding fast settings before the run. In: nothing. Out: ``TuningConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfactory.config.field import flag


@dataclass(frozen=True)
class RunConfig:
    """What to train, where to keep it, and when to stop."""

    env: str = flag("", "environment: a Gymnasium id, a family name, or module:function")
    env_kwargs: Mapping[str, Any] = flag({}, "JSON object of keyword arguments for the environment's factory")
    experiment: str = flag("default_experiment", "name of the run; an existing run of that name is resumed")
    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment")
    seed: int | None = flag(
        None, "seed of envs, inference and learner; drawn at random and recorded if not given", ge=0
    )
    restart_behavior: Literal["resume", "restart", "overwrite"] = flag(
        "resume",
        "an existing run of that name is resumed; restart: moved aside to NAME_oldNNNN; overwrite: moved aside, too, "
        "replacing what an earlier overwrite had moved (nothing else is ever deleted)",
    )
    serial_mode: bool = flag(
        False, "everything in one process, repeatable bit by bit on a CPU, for debugging and for small machines"
    )
    device: Literal["auto", "gpu", "cpu"] = flag(
        "auto", "where learner and central inference run; auto takes a GPU if there is one"
    )
    train_for_env_steps: int = flag(
        10_000_000_000,
        "stop after this many trained env steps (frameskip not counted), of each policy that learns",
        gt=0,
    )
    train_for_frames: int = flag(
        10_000_000_000, "stop after this many frames, which are env steps x env_frameskip", gt=0
    )
    max_restarts: int = flag(
        0,
        "how often, over the whole session, all processes start anew from the newest checkpoint because a learner "
        "failed",
        ge=0,
    )
    train_for_seconds: float = flag(1e10, "stop after this many seconds of training (start-up not counted)", gt=0)


@dataclass(frozen=True)
class ReportConfig:
    """What is reported, and when."""

    stats_avg: int = flag(100, "episodes that reported means cover", ge=1)
    report_interval_sec: float = flag(5.0, "seconds between progress lines", gt=0)
    experiment_summaries_interval: float = flag(10.0, "seconds between TensorBoard and metrics.jsonl rows", gt=0)
    flush_summaries_interval: float = flag(30.0, "seconds between flushes of TensorBoard files", gt=0)
    with_tensorboard: bool = flag(True, "write TensorBoard event files")
    log_to_file: bool = flag(True, "write progress and messages to sf_log.txt in the run's folder, too")


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


@dataclass(frozen=True)
class EvaluationConfig:
    """Playing episodes with the policy while it is trained, in processes and environments of their own."""

    eval_interval_sec: float = flag(0.0, "seconds between the starts of two evaluations; 0: none is made", ge=0)
    eval_workers: int = flag(1, "processes that play the episodes of an evaluation", ge=1, le=64)
    eval_episodes: int = flag(10, "whole episodes of one evaluation, over all its workers", ge=1)
    eval_deterministic: bool = flag(
        True, "an evaluation takes the most probable action; False draws actions at random as training does"
    )


@dataclass(frozen=True)
class HooksConfig:
    """Code of your own that is called as training goes on."""

    observers: tuple[str, ...] = flag(
        (),
        "classes, each as module:Class, of which one instance each is told of start, training steps and end in the "
        "main process, and may add to the summaries",
    )
    after_train_step: tuple[str, ...] = flag(
        (), "functions, each as module:function, that the learner calls after its training steps"
    )


@dataclass(frozen=True)
class BenchmarkConfig:
    """Measuring throughput instead of training to an end."""

    benchmark: bool = flag(False, "warm up, measure, print one JSON line, stop")
    benchmark_stage: Literal["env", "sample", "learn", "full"] = flag(
        "full",
        "with benchmark: what is measured: environments alone, sampling without training, training again and again on "
        "one dataset while nothing is sampled, or all of it together",
    )
    sampler_only: bool = flag(False, "with benchmark: the same as benchmark_stage=sample")
    benchmark_seconds: float = flag(30.0, "length of the measurement", gt=0)

    @property
    def stage(self) -> Literal["env", "sample", "learn", "full"]:
        """What is measured."""
        return "sample" if self.sampler_only else self.benchmark_stage


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
