"""Room: what the machine must have. In: planned sizes. Out: nothing, or a ResourceError with need and have.

What a run can do without is warned about.
"""

from __future__ import annotations

import logging
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sfactory.errors import ResourceError

_log = logging.getLogger(__name__)

_SHARE = 0.9  # of the free memory that shared blocks may take


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else int(kib) * 1024


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _cgroup_available(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes left under the container's limit (cgroup v2, then v1), or None without one."""
    for limit_path, used_path in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        limit, used = _number(limit_path), _number(used_path)
        if limit is not None and used is not None:
            return max(0, limit - used)
    return None


def available_memory() -> int | None:
    """Bytes that can be allocated, as far as the machine and the container tell."""
    known = [number for number in (_meminfo_available(), _cgroup_available()) if number is not None]
    return min(known, default=None)


def require_cores(kept: int, have: int) -> None:
    """Raise ResourceError if ``kept`` cores for the learner would leave none of those that there are to actors."""
    if kept >= have:
        most = f"at most {have - 1}" if have > 1 else "leave it at 0"
        raise ResourceError(
            f"--learner_cores={kept} needs {kept + 1} cores, one of them for the actor workers, and this run has "
            f"{have} (by its affinity mask and the container's quota): {most}"
        )


def require_memory(planned: int) -> None:
    """Raise ResourceError if ``planned`` bytes of shared memory would take most of what is free."""
    have = available_memory()
    if have is not None and planned > _SHARE * have:
        raise ResourceError(
            f"trajectories, batches and weights need {planned / 2**20:,.0f} MiB of memory, and "
            f"{have / 2**20:,.0f} MiB are free; lower --num_workers, --num_envs_per_worker, --rollout, "
            "--min_traj_buffers_per_worker, --batch_size or --replay_slots"
        )


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def warn_of_niceness(niceness: int) -> None:
    """Warn if processes are to have a ``niceness`` below main's and may not: they do without it."""
    if niceness >= 0:
        return
    # Linux gives each thread its own: this one's changes and ends with it.
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(os.nice, niceness).result()
        except OSError as error:
            _log.warning(
                "--default_niceness=%d is left out where it would lower the niceness of a process: %s (that takes "
                "root, CAP_SYS_NICE, or a limit that is seen with ulimit -e)",
                niceness,
                error,
            )
