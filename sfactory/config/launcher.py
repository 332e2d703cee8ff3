"""The command lines of ``sfactory.launcher`` and ``sfactory.remote_actors``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sfactory.config.commands import Clash, Command
from sfactory.config.field import flag

_NAMES = re.compile(r"[A-Za-z0-9_.,-]+")  # of Slurm's partitions
_SUFFIX = re.compile(r"[A-Za-z0-9._-]{0,50}")
_OF_PROCESSES = ("pause_between", "num_gpus", "max_parallel", "experiments_per_gpu")


@dataclass(frozen=True)
class LauncherConfig:
    """Which runs to start, and where; ``--run`` says what they train."""

    run: str = flag(
        "",
        "what to run: module:name of a RunDescription or of a function that returns one (the current directory is "
        "importable; a module alone: its RUN_DESCRIPTION), or a TOML file",
        path=True,
    )
    backend: Literal["processes", "slurm"] = flag(
        "processes", "processes: run here; slurm: write a batch script for each run, and submit it"
    )
    train_dir: str = flag(
        "./train_dir", "directory with a folder per description, and in it one per experiment", path=True
    )
    pause_between: float = flag(1.0, "seconds between the starts of two runs", ge=0)
    experiment_suffix: str = flag("", "text that is added to the name of every experiment")
    num_gpus: int = flag(1, "processes: number of GPUs that experiments_per_gpu distributes", ge=1, le=4096)
    max_parallel: int = flag(4, "processes: maximum runs at the same time", ge=1)
    experiments_per_gpu: int = flag(
        -1, "processes: runs that share one GPU and see only that one; -1: every run sees all GPUs", ge=-1
    )
    slurm_gpus_per_job: int = flag(1, "slurm: GPUs of a run", ge=0)
    slurm_cpus_per_gpu: int = flag(14, "slurm: cores per GPU of a run; of a run without GPUs, its cores", ge=1)
    slurm_print_only: bool = flag(False, "slurm: write the scripts and print the commands that submit them")
    slurm_workdir: str | None = flag(
        None, "slurm: folder of the scripts; none: slurm beside the experiments' folders", path=True
    )
    slurm_partition: str | None = flag(None, "slurm: partition; none: the cluster's own choice")
    slurm_sbatch_template: str | None = flag(
        None, "slurm: file of the script's own lines, with {{ CMD }} in place of the run; none: a plain one", path=True
    )
    slurm_timeout: int = flag(
        0, "slurm: seconds after which a run saves and is queued again; 0: only the job's own limit applies", ge=0
    )


def _clashes(config: LauncherConfig) -> Iterator[Clash]:
    if not config.run or "\0" in config.run:
        yield "run", "must say what to run, for example --run=my_search:RUNS or --run=my_search.toml", ()
    if not _SUFFIX.fullmatch(config.experiment_suffix):
        yield "experiment_suffix", "becomes a part of folder names: at most 50 letters, digits, '.', '_' or '-'", ()
    if config.experiments_per_gpu == 0:
        yield "experiments_per_gpu", "must be at least 1, or -1 so that every run sees all GPUs", ()
    if config.num_gpus > 1 and config.experiments_per_gpu == -1 and config.backend == "processes":
        advice = "GPUs are dealt out only where --experiments_per_gpu says how many runs share one, for example 1"
        yield "num_gpus", advice, ("experiments_per_gpu", "backend")
    if config.slurm_partition is not None and not _NAMES.fullmatch(config.slurm_partition):
        yield "slurm_partition", "must be a name, or several separated by commas", ()
    of_slurm = [name for name in launcher_flags if name.startswith("slurm_")]
    for name in _OF_PROCESSES if config.backend == "slurm" else of_slurm:
        if getattr(config, name) != launcher_flags[name].default:
            yield name, f"has no effect with --backend={config.backend}; leave it out", ("backend",)


_LAUNCHER = Command(
    LauncherConfig,
    "launcher",
    "Starts many runs of sfactory.train, on this machine or on Slurm. The same command again resumes interrupted and "
    "failed runs, and leaves finished ones alone.",
    _clashes,
    usage="--run=WHAT",
)
launcher_flags, read_launcher_line = _LAUNCHER.flags, _LAUNCHER.read


@dataclass(frozen=True)
class RemoteConfig:
    """Which run to join with actors of this machine, and how many."""

    connect: str = flag("", "address of the run, HOST:PORT (by IPv4): --remote_actors_port of its machine")
    token_file: str = flag("", "file with the secret of the run (its --remote_actors_token_file)", path=True)
    env: str = flag("", "the run's environment, repeated")
    num_workers: int = flag(0, "actor processes; 0: one per core", ge=0, le=4096)
    reconnect_sec: float = flag(
        60.0, "seconds in which the run must answer at the start, and if the link is lost", gt=0
    )
    trust_learner: bool = flag(
        False, "True runs the code that settings of the run name as module:name, beside its environment"
    )


_ADDRESS = re.compile(r"[A-Za-z0-9._-]+:(\d{1,5})", re.ASCII)


def _remote_clashes(config: RemoteConfig) -> Iterator[Clash]:
    address = _ADDRESS.fullmatch(config.connect)
    if address is None or not 0 < int(address[1]) < 2**16:
        yield (
            "connect",
            "must be HOST:PORT of the run, with a port of 1 to 65535 and a name or an IPv4 address, for example "
            "--connect=learner.local:5555",
            (),
        )
    if not config.token_file:
        yield "token_file", "must name a file with the secret of the run", ()
    if not config.env:
        yield "env", "must be the run's environment: what it names is made, and run, on this machine", ()


_REMOTE = Command(
    RemoteConfig,
    "remote_actors",
    "Collects experience on this machine for a run on another one, until that ends. It acts with the newest weights of "
    "the run, and sends it whole trajectories.",
    _remote_clashes,
    usage="--connect=HOST:PORT --token_file=FILE --env=ENV",
)
remote_flags, read_remote_line = _REMOTE.flags, _REMOTE.read
