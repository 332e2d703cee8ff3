"""Room: flags: what to train, where to keep it, and when to stop. In: nothing. Out: ``RunConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfactory.config.flag import flag


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
