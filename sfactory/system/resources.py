"""Room: what the machine must have. In: planned sizes. Out: nothing, or a ResourceError with need and have.

What a run can do without is warned about.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from sfactory.errors import ResourceError
from sfactory.system.cores import Cores, memory_left

_log = logging.getLogger(__name__)

_SHARE = 0.9  # of the free memory that shared blocks may take
# Open files of main, as counted in runs: what it has by itself, with headroom, and what each child adds.
_HANDLES, _HANDLES_PER_CHILD = 64, 4


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else int(kib) * 1024


def available_memory() -> int | None:
    """Bytes that can be allocated, as far as the machine and the container tell."""
    known = [number for number in (_meminfo_available(), memory_left()) if number is not None]
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
    """Raise the soft limit of open files to the hard one, for this process and those that it will start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Not where the kernel's own bound has been lowered below the hard limit; what is needed is checked later.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def handles_needed(children: int) -> int:
    """Files that main may have open in a run with so many child processes."""
    return _HANDLES + _HANDLES_PER_CHILD * children


def require_handles(children: int) -> None:
    """Raise ResourceError if main could not have the files open that a run with so many children takes."""
    need, (have, _) = handles_needed(children), resource.getrlimit(resource.RLIMIT_NOFILE)
    if have not in (resource.RLIM_INFINITY, -1) and need > have:
        raise ResourceError(
            f"a run with {children} child processes needs {need} open files, and {have} are allowed; raise the hard "
            "limit (seen with ulimit -Hn; docker run --ulimit nofile=...), or lower --num_workers"
        )


def warn_of_few_cores(cores: Cores, processes: int) -> None:
    """Warn if processes that are made to work side by side can only take turns."""
    if cores.count < 2:
        quota = "none" if cores.quota is None else f"{cores.quota:g} cores"
        _log.warning(
            "this run has one core (affinity mask: %s; quota: %s), on which its %d processes take turns; "
            "--serial_mode=True is likely to be faster",
            ",".join(map(str, cores.ids)),
            quota,
            processes,
        )


def pinnable(cores: Cores) -> Cores:
    """The same cores; if the kernel refuses to pin processes to them, with a warning, and nobody is pinned."""
    # Linux gives each thread its own mask: this one's ends with it.
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(os.sched_setaffinity, 0, cores.ids[:1]).result()
        except OSError as error:
            _log.warning("--set_workers_cpu_affinity is left out: %s", error)
            return replace(cores, pins=False)
    return cores


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
