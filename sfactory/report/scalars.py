"""Names and values of the scalars in metrics.jsonl and TensorBoard: policy lag, rates, counters, times, memory.

A name is present from the first row on, with None until there is a value. docs/metrics.md describes each.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

from sfactory.layout import ACTORS, LEARNERS
from sfactory.messages import TRAIN_STATISTICS, PolicyLag, TrainStats
from sfactory.report.episode_stats import Throughput, Window
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import StatusBoard

Row = dict[str, float | None]

_COUNTERS = ("datasets", "replayed_steps", "dropped_steps", "publications", "target_updates")
_FAULTS = ("env_restarts", "bad_env_data")


def window_scalars(name: str, window: Window) -> Row:
    """``<name>_mean``, ``_min`` and ``_max`` of a window."""
    values = window.values
    low, high = (float(values.min()), float(values.max())) if values.size else (None, None)
    return {f"{name}_mean": window.mean, f"{name}_min": low, f"{name}_max": high}


def counter_scalars(status: StatusBoard) -> Row:
    """Counters of learners and actors in this session."""
    row: Row = {f"perf/{name}": int(status.total(name, LEARNERS)) for name in _COUNTERS}
    return row | {f"perf/{name}": count for name, count in env_faults(status).items()}


def env_faults(status: StatusBoard) -> dict[str, int]:
    """Number of env failures in this session, by kind."""
    return {name: int(status.total(name, ACTORS)) for name in _FAULTS}


def account_scalars(status: StatusBoard, table: SlotTable) -> Row:
    """What happened to the sampled steps of this session; exact once all processes have ended."""
    return {
        "perf/received_steps": int(status.total("received_steps", LEARNERS)),
        "perf/held_steps": table.steps_held(),
        "perf/discarded_steps": int(status.total("discarded_steps", "")),
        "perf/worker_restarts": int(status.total("restarts", "")),
    }


def train_scalars(stats: TrainStats | None) -> Row:
    """The newest statistics and policy lag of a learner."""
    row: Row = {f"train/{name}": None if stats is None else getattr(stats, name) for name in TRAIN_STATISTICS}
    lags = (PolicyLag(), PolicyLag()) if stats is None else (stats.lag, stats.replay_lag)
    for name, lag in zip(("policy_lag", "replay_lag"), lags, strict=True):
        row |= {f"{name}/min": lag.min, f"{name}/mean": lag.mean, f"{name}/max": lag.max}
    return row


def sb3_scalars(row: Mapping[str, float | None], trained: Throughput, seconds_of_session: float) -> Row:
    """The names that Stable-Baselines3 uses for the same quantities, see docs/metrics.md."""
    entropy = row["train/entropy"]
    return {
        "rollout/ep_rew_mean": row["train/episode_return_mean"],
        "rollout/ep_len_mean": row["train/episode_length_mean"],
        "time/fps": trained.overall,
        "time/iterations": row["perf/datasets"],
        "time/time_elapsed": seconds_of_session,
        "time/total_timesteps": row["perf/trained_env_steps"],
        "train/approx_kl": row["train/kl"],
        "train/entropy_loss": None if entropy is None else -entropy,
        "train/n_updates": row["perf/updates"],
        "train/policy_gradient_loss": row["train/policy_loss"],
    }


_PAGES_PER_MB = 2**20 / mmap.PAGESIZE


def private_mb(pid: int) -> float | None:
    """Resident memory of a process in MB (2^20 bytes), without shared memory and mapped files; None if it has ended.

    Pages that a fork left in common count for each process.
    """
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_bytes().split())
    except (OSError, ValueError):
        return None
    # A process that has ended but was not waited for yet has no memory.
    return max(0, resident - shared) / _PAGES_PER_MB if resident else None


def memory_scalars(pids: Mapping[str, int]) -> dict[str, float]:
    """``memory/<name>_mb`` of each running process, and their sum ``memory/total_mb``.

    A pid of 0 means not started; of several names with the same pid only the first counts.
    """
    scalars: dict[str, float] = {}
    seen = {0}
    for name, pid in pids.items():
        if pid not in seen:
            seen.add(pid)
            megabytes = private_mb(pid)
            if megabytes is not None:
                scalars[f"memory/{name}_mb"] = megabytes
    return scalars | {"memory/total_mb": sum(scalars.values())}


def memory_of_run(status: StatusBoard) -> dict[str, float]:
    """``memory_scalars`` of this process and its children."""
    pids = map(int, status.values("pid", ""))
    return memory_scalars({"sf-main": os.getpid(), **dict(zip(status.names, pids, strict=True))})


def memory_by_kind(scalars: Mapping[str, float]) -> dict[str, float]:
    """The total, and the sum of each kind of process (main, actor, policy, ...), of ``memory_scalars``."""
    sums: dict[str, float] = {}
    for name, megabytes in scalars.items():
        kind = name.removeprefix("memory/").removeprefix("sf-").removesuffix("_mb").partition("-")[0]
        sums[kind] = sums.get(kind, 0.0) + megabytes
    return sums
