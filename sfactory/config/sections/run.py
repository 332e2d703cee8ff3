"""Flags of the run: limits, reports, checkpoints, evaluation, hooks, benchmarks and autotune."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfactory.config.field import flag
from sfactory.system.operating_system import LINUX

_NO_LIMIT = 10_000_000_000  # of steps or frames


@dataclass(frozen=True)
class RunConfig:
    """What to train, where to keep it, and when to stop."""

    env: str = flag("", "environment: a Gymnasium id, a family name, or module:function")
    env_kwargs: Mapping[str, Any] = flag({}, "keyword arguments for the environment's factory, as a JSON object")
    experiment: str = flag("", "name of the run; an existing run of this name is resumed; empty: named after env")
    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment", path=True)
    seed: int | None = flag(
        None, "seed of envs, inference and learner; drawn and recorded if not given; kept by a resumed run", ge=0
    )
    restart_behavior: Literal["resume", "restart", "overwrite"] = flag(
        "resume",
        "what happens to an existing run of this name: resume continues it; restart archives it as NAME_oldNNNN; "
        "overwrite archives it, too, and once it has trained replaces what an earlier overwrite archived (nothing else "
        "is ever deleted); a start that fails before it has saved any training puts the run back",
    )
    trust_run_dir: bool = flag(
        False,
        "True runs the code that config.json of a run names as module:name, in env, observers and the like; otherwise "
        "such code must be named on the command line, too",
    )
    task_defaults: bool = flag(
        True,
        "flags that are not set get defaults for the kind of task, where no env family has its own: vector "
        "observations, tables of states, continuous actions, or images (docs/task_defaults.md), and for a GPU "
        "(docs/gpu.md); False: those listed here",
    )
    serial_mode: bool = flag(
        not LINUX,
        "run everything in one process, repeatable bit by bit on a CPU; for debugging and small machines, and on macOS "
        "and Windows, where it is the default",
    )
    device: str = flag(
        "auto",
        "where the learner and central inference run: cpu, gpu (or cuda), cuda:N for the first policy (others get the "
        "next GPUs); auto uses a GPU if there is one",
    )
    learner_devices: str = flag(
        "",
        "where ranks of this machine learn, which train one policy together and divide its cores: numbers of GPUs, or "
        "cpu several times, separated by commas (docs/scaling.md); empty: one learner, on device",
    )
    train_for_env_steps: int = flag(
        _NO_LIMIT, "stop after this many trained env steps (frameskip not counted) of each policy that learns", gt=0
    )
    train_for_frames: int = flag(
        _NO_LIMIT, "stop after this many frames, which are env steps x env_frameskip x action_repeat", gt=0
    )
    max_restarts: int = flag(
        0, "how often, in one session, all processes restart from the newest checkpoint after the learner failed", ge=0
    )
    rank_timeout_sec: float = flag(
        60.0,
        "with several ranks: seconds without a sign of life of another rank, or in a sum over all of them, "
        "after which the first rank saves and all end; a machine that is cut off may take twice as long",
        ge=5,
    )
    train_for_seconds: float = flag(1e10, "stop after this many seconds of training (start-up not counted)", gt=0)

    def most_env_steps(self, frames_per_step: int) -> int:
        """Trained env steps after which training is over; frames are converted to env steps, rounded up.

        The default of one limit is none beside the other.
        """
        steps, of_frames = self.train_for_env_steps, -(-self.train_for_frames // frames_per_step)
        if _NO_LIMIT in (steps, self.train_for_frames):
            return of_frames if steps == _NO_LIMIT else steps
        return min(steps, of_frames)


@dataclass(frozen=True)
class ReportConfig:
    """What is reported, and when."""

    stats_avg: int = flag(100, "episodes in the mean of each reported statistic", ge=1)
    report_interval_sec: float = flag(5.0, "seconds between progress lines", gt=0)
    experiment_summaries_interval: float = flag(10.0, "seconds between TensorBoard and metrics.jsonl rows", gt=0)
    flush_summaries_interval: float = flag(30.0, "seconds between flushes of TensorBoard files", gt=0)
    with_tensorboard: bool = flag(True, "write TensorBoard event files")
    log_to_file: bool = flag(True, "also write progress and messages to sf_log.txt in the run's folder")
    quiet: bool = flag(False, "print nothing but warnings, errors and the result; the log file has everything")
    log_level: Literal["debug", "info", "warning", "error"] = flag(
        "info", "least severe messages that are printed and logged; lines of progress are no messages"
    )

    @property
    def level(self) -> int:
        """log_level as the module logging counts it."""
        return logging.getLevelNamesMapping()[self.log_level.upper()]

    @property
    def printed_level(self) -> int:
        """Of the least severe messages that are printed, which with ``quiet`` are fewer than those logged."""
        return max(self.level, logging.WARNING) if self.quiet else self.level


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved, and when."""

    save_every_sec: float = flag(120.0, "seconds between checkpoints", gt=0)
    keep_checkpoints: int = flag(2, "number of latest checkpoints to keep", ge=1)
    save_milestones_sec: float = flag(
        -1.0, "seconds between milestones, which are checkpoints that are never deleted; -1 saves none", ge=-1
    )
    save_best_metric: str = flag(
        "reward",
        "metric of the best policy: reward, true_objective, an extra episode statistic by name, or eval_return: the "
        "mean return of an evaluation, whose weights are saved (with eval_interval_sec)",
    )
    save_best_every_sec: float = flag(5.0, "minimum seconds between two saves of the best policy", ge=0)
    save_best_after: int = flag(100_000, "env steps before the best policy is saved for the first time", ge=0)
    load_checkpoint_kind: Literal["latest", "best", "milestone"] = flag(
        "latest", "checkpoint to resume from: the newest, the best policy, or the newest milestone"
    )
    init_from: str = flag(
        "",
        "another run (its name or folder) whose weights a new run begins with, as RUN, RUN:POLICY or RUN:POLICY:KIND "
        "(latest, best, milestone); optimizer and counts start at zero",
        path=True,
    )
    init_parts: tuple[str, ...] = flag(
        (),
        "which of its parts: normalizer (of observations), encoder, core, decoder, policy, value (heads), model; "
        "empty: all",
    )

    @property
    def best_by_evaluation(self) -> bool:
        """Whether evaluations decide which policy is the best."""
        return self.save_best_metric == "eval_return"

    @property
    def episode_metric(self) -> str:
        """save_best_metric, if episodes of training have it, else their return, which then decides nothing."""
        return "reward" if self.best_by_evaluation else self.save_best_metric


@dataclass(frozen=True)
class EvaluationConfig:
    """Playing episodes with the policy while it is trained, in processes and environments of their own."""

    eval_interval_sec: float = flag(0.0, "seconds between the starts of two evaluations; 0 makes none", ge=0)
    eval_workers: int = flag(1, "processes that play the episodes of an evaluation", ge=1, le=64)
    eval_episodes: int = flag(10, "whole episodes of one evaluation, over all its workers", ge=1)
    eval_deterministic: bool = flag(True, "take the most probable action; False samples actions as training does")
    eval_video: bool = flag(
        False,
        "record the first episode of an evaluation, up to 1,500 frames or a minute of drawing, in the run's folder "
        "videos, and hand it to TensorBoard and the trackers in use (docs/report.md#videos); again after a tenth more "
        "env steps, so that about 25 come with each tenfold, and all are kept; needs the extra video",
    )

    @property
    def records(self) -> bool:
        """Whether there are videos of evaluations."""
        return self.eval_video and self.eval_interval_sec > 0


@dataclass(frozen=True)
class HooksConfig:
    """Code of your own that is called during training."""

    observers: tuple[str, ...] = flag(
        (),
        "classes, each as module:Class or the name of an installed one; the main process creates one instance of each "
        "and calls it at the start, at training steps, after episodes and at the end; it may add to the summaries",
    )
    after_train_step: tuple[str, ...] = flag(
        (), "functions, each as module:function, that the learner calls after its training steps"
    )


@dataclass(frozen=True)
class BenchmarkConfig:
    """Measuring throughput instead of training to an end."""

    benchmark: bool = flag(False, "measure throughput after a warm-up, print one JSON line, and stop")
    benchmark_stage: Literal["env", "sample", "learn", "full"] = flag(
        "full",
        "with benchmark: measures environments alone (env), sampling without training (sample), training on "
        "one dataset without sampling (learn), or everything (full)",
    )
    sampler_only: bool = flag(False, "with benchmark: the same as benchmark_stage=sample")
    benchmark_seconds: float = flag(30.0, "length of the measurement", gt=0)
    benchmark_pure_simulation: float = flag(
        0.0,
        "env steps per second of pure simulation, where they are known from an earlier benchmark: a benchmark measures "
        "them otherwise, and the live view of a run shows their share",
        ge=0,
    )

    @property
    def stage(self) -> Literal["env", "sample", "learn", "full"]:
        """The measured stage."""
        return "sample" if self.sampler_only else self.benchmark_stage


@dataclass(frozen=True)
class TuningConfig:
    """Finding fast settings before the run."""

    autotune: bool = flag(
        False,
        "before training, find fast settings for this machine and environment by short trials, and keep them for the "
        "run; tried are num_workers, num_envs_per_worker, worker_num_splits, inference and learner_num_threads, except "
        "those that the command line or the config file sets",
    )
    autotune_seconds: float = flag(3.0, "seconds that a trial is measured, after start-up and warm-up", ge=0.1, le=60)
    autotune_batch: bool = flag(
        False, "with autotune: also try larger and smaller batch_size, which changes what each step teaches"
    )
