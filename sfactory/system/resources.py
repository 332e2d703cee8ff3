"""Checks that the machine has enough cores, memory and open files for a run: raises ResourceError, or warns."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from sfactory.errors import ResourceError
from sfactory.system.cores import Cores, memory_left
from sfactory.system.operating_system import LINUX, NAME

_log = logging.getLogger(__name__)

_SHARE = 0.9  # maximum share of free memory that is planned
# Memory of processes, measured in control groups: what one imports, and what each adds of its own, without envs.
_MIB = 2**20
_IMPORTS = 155 * _MIB
_ADDRESSES = 900 * _MIB  # of main, without a GPU; mapped, and mostly not in memory
_LEARNER, _OTHER_CHILD, _ALL_IN_MAIN = 130 * _MIB, 17 * _MIB, 60 * _MIB
# Open files of main, measured in runs: its own number (with headroom), and the numbers that each child adds, and each
# weights in shared memory after the first.
_HANDLES, _HANDLES_PER_CHILD, _HANDLES_PER_WEIGHTS = 64, 4, 3
# Of these each child is sent some, measured with many policies; larger queues take a few more.
_SENT, _SENT_PER_WEIGHTS = 20, 2
_MOST_SENT = 251  # multiprocessing.forkserver refuses 256 and more, with four that it adds
FEWER_SENT = (
    f"the fork server of Python passes at most {_MOST_SENT} open files to a process; lower --num_policies "
    "or --opponent_pool, or leave evaluations out (--eval_interval_sec=0)"
)


def available_memory() -> int | None:
    """Bytes that can be allocated, by the limits of machine and container; None if unknown."""
    numbers = [memory_left()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        numbers += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min((number for number in numbers if number is not None), default=None)


def require_linux(what: str, instead: str) -> None:
    """Raise ResourceError, which says what to do ``instead``, if this is another system: it cannot do ``what``."""
    if not LINUX:
        raise ResourceError(f"{what} needs Linux (memfd, eventfd, pidfd, /proc), and this is {NAME}; {instead}")


def require_cores(kept: int, have: int) -> None:
    """Raise ResourceError if reserving ``kept`` of ``have`` cores for the learner leaves none for actors."""
    if kept >= have:
        most = f"at most {have - 1}" if have > 1 else "leave it at 0"
        raise ResourceError(
            f"--learner_cores={kept} needs {kept + 1} cores, one of them for the actor workers, and this run has "
            f"{have} (by its affinity mask and the container's quota): {most}"
        )


def require_imports() -> None:
    """Raise ResourceError if the memory does not suffice for what main, unless it has, and the fork server import."""
    need, have = _IMPORTS * (1 if "torch" in sys.modules else 2), available_memory()
    if have is not None and need > have:
        raise ResourceError(
            f"a run needs {need / _MIB:,.0f} MiB of memory before it can start a process, and {have / _MIB:,.0f} MiB "
            "are free; raise the limit of the container (docker run --memory=...), or end other processes"
        )
    import resource

    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY and addresses < _ADDRESSES:
        raise ResourceError(
            f"a process may map {addresses / _MIB:,.0f} MiB here (ulimit -v), and the imports of a run alone take "
            f"{_ADDRESSES / _MIB:,.0f} MiB; lift the limit: ulimit -v unlimited"
        )


def process_memory(learners: int, others: int) -> int:
    """Bytes that so many processes take of their own; without any, what a serial run takes."""
    return learners * _LEARNER + others * _OTHER_CHILD or _ALL_IN_MAIN


def require_memory(planned: int, learning: int = 0, processes: int = 0) -> None:
    """Raise ResourceError if all of it exceeds 90% of the free memory, in bytes.

    planned: trajectories, batches and weights. learning: what an update takes in addition. processes: their own.
    """
    have, need = available_memory(), planned + learning + processes
    if have is None or need <= _SHARE * have:
        return
    parts = {"trajectories, batches and weights": planned, "an update": learning, "processes": processes}
    shown = ", ".join(f"{what} {size / _MIB:,.0f}" for what, size in parts.items() if size >= _MIB)
    fewer = "--microbatch_size (a divisor of --batch_size), " if learning > planned else ""
    raise ResourceError(
        f"the run needs {need / _MIB:,.0f} MiB of memory ({shown}), and {have / _MIB:,.0f} MiB are free; lower "
        f"{fewer}--num_workers, --num_envs_per_worker, --rollout, --min_traj_buffers_per_worker, --batch_size or "
        "--replay_slots, or raise the limit of the container"
    )


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, for this process and its future children."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Fails if the kernel's own limit is below the hard limit; require_handles checks the needed number later.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def handles_needed(children: int, weights: int = 1) -> int:
    """Number of files that main may open in a run with ``children`` child processes, and so many shared weights."""
    return _HANDLES + _HANDLES_PER_CHILD * children + _HANDLES_PER_WEIGHTS * (weights - 1)


def require_handles(children: int, weights: int = 1) -> None:
    """Raise ResourceError if main may not open enough files for such a run, or a child cannot be sent its own."""
    import resource

    if (sent := _SENT + _SENT_PER_WEIGHTS * weights) > _MOST_SENT:
        raise ResourceError(f"each process of the run would be sent {sent} open files: {FEWER_SENT}")
    need, (have, _) = handles_needed(children, weights), resource.getrlimit(resource.RLIMIT_NOFILE)
    if have not in (resource.RLIM_INFINITY, -1) and need > have:
        raise ResourceError(
            f"a run with {children} child processes needs {need} open files, and {have} are allowed; raise the hard "
            "limit (seen with ulimit -Hn; docker run --ulimit nofile=...), or lower --num_workers"
        )


def warn_of_few_cores(cores: Cores, processes: int, ranks: int = 1) -> None:
    """Warn if the processes of a parallel run, or of each of its ranks, have only one core."""
    if cores.count < 2:
        quota = "none" if cores.quota is None else f"{cores.quota:g} cores"
        text = (
            "this run has one core (affinity mask: %s; quota: %s), on which its %d processes take turns; "
            "--serial_mode=True is likely to be faster"
        )
        if ranks > 1:
            text = (
                "each rank has one core (this one: %s; quota: %s), on which its %d processes take turns; "
                "fewer ranks are likely to be faster"
            )
        _log.warning(text, ",".join(map(str, cores.ids)), quota, processes)


def pinnable(cores: Cores) -> Cores:
    """Return ``cores``; if the kernel refuses to pin processes, log a warning and return them with pins=False."""
    if error := _refusal(os.sched_setaffinity, 0, cores.ids[:1]):
        _log.warning("--set_workers_cpu_affinity is left out: %s", error)
        return replace(cores, pins=False)
    return cores


def warn_of_niceness(niceness: int) -> None:
    """Warn if the requested negative ``niceness`` is not permitted; the run then continues without it."""
    if niceness < 0 and (error := _refusal(os.nice, niceness)):
        _log.warning(
            "--default_niceness=%d is left out where it would lower the niceness of a process: %s (that takes root, "
            "CAP_SYS_NICE, or a limit that is seen with ulimit -e)",
            niceness,
            error,
        )


def _refusal(change: Callable[..., object], *arguments: object) -> OSError | None:
    """The error of ``change``, which runs in its own thread: on Linux, niceness and affinity mask belong to a thread,
    so the test has no lasting effect."""
    with ThreadPoolExecutor(1) as thread:
        error = thread.submit(change, *arguments).exception()
    assert error is None or isinstance(error, OSError)
    return error
