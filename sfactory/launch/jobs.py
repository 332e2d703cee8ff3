"""The runs of a launcher: their command lines, their state in ``launch.json``, and the table of results.

One launcher at a time owns the directory of the runs. Whether a run is done is decided by the run's own record
(``Job.done``); ``launch.json`` keeps how often a run was started, how it ended and why it failed, even if the run never
had a directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from sfactory import atomic
from sfactory.config.resolve import read_command_line
from sfactory.errors import ConfigError, RunDirError
from sfactory.experiment.provenance import local_time
from sfactory.experiment.summary import Summary
from sfactory.launch.run_description import MODULE, Planned, RunDescription

_MAX_NAMES = 3
_RESERVED_FLAGS = {"experiment": "the launcher names the runs", "train_dir": "it is a flag of the launcher"}


@dataclass(frozen=True)
class Job:
    """One run of sfactory.train in ``folder``. arguments: its command line after the module."""

    name: str
    folder: Path
    arguments: tuple[str, ...]
    env_vars: Mapping[str, str]

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.folder / self.name

    @property
    def log_path(self) -> Path:
        """File with the output of its process."""
        return self.folder / f"{self.name}.log"

    @property
    def command(self) -> list[str]:
        """The command to execute."""
        return [sys.executable, "-m", MODULE, *self.arguments]

    @property
    def done(self) -> bool:
        """Whether its run.json says that it has finished with exactly these arguments."""
        try:
            record = json.loads((self.run_dir / "run.json").read_bytes())
            return bool(record["status"] == "done" and record["argv"] == list(self.arguments))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def summary(self) -> Summary | None:
        """Its summary.json; None if that is missing or invalid."""
        return Summary.read(self.run_dir / "summary.json")


def folder_of(description: RunDescription, train_dir: str) -> Path:
    """The ``--train_dir`` of all runs of ``description``."""
    return Path(train_dir) / description.run_name


def jobs_of(description: RunDescription, train_dir: str, suffix: str) -> list[Job]:
    """All runs of ``description``, with command lines that the trainer accepts.

    Raises ConfigError with all problems of all runs.
    """
    planned = description.runs(suffix)
    folder = folder_of(description, train_dir)
    jobs = [_job(run, folder) for run in planned]
    names_by_problem: dict[str, list[str]] = {}
    for run, job in zip(planned, jobs, strict=True):
        for problem in _problems(run.words, job.arguments):
            names_by_problem.setdefault(problem, []).append(job.name)
    if names_by_problem:
        raise ConfigError([f"{_listed(names)}: {problem}" for problem, names in names_by_problem.items()])
    return jobs


def _job(run: Planned, folder: Path) -> Job:
    where = [f"--train_dir={folder}", f"--experiment={run.name}"]
    return Job(run.name, folder, (*run.words, *where), run.env_vars)


def _problems(words: Sequence[str], arguments: Sequence[str]) -> list[str]:
    given = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    problems = [f"--{name}: {why}; leave it out" for name, why in _RESERVED_FLAGS.items() if name in given]
    if "--help" in words or "-h" in words:
        problems.append("--help: starts no run; leave it out")
    if problems:
        return problems
    try:
        config = read_command_line(arguments, prog=MODULE).config
    except ConfigError as error:
        return error.problems
    if config.benchmark.benchmark:
        problems.append("--benchmark=True: a benchmark is not a run that can be done or resumed; leave it out")
    if config.run.restart_behavior != "resume":
        problems.append(
            f"--restart_behavior={config.run.restart_behavior}: would restart the run whenever the launcher resumes; "
            "choose another run_name or --experiment_suffix for new runs"
        )
    if config.checkpoint.load_checkpoint_kind != "latest":
        problems.append(
            f"--load_checkpoint_kind={config.checkpoint.load_checkpoint_kind}: would go back whenever the "
            "launcher resumes; leave it out"
        )
    return problems


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


NAME = "launch.json"
LOCK_NAME = ".launch.lock"
FORMAT_VERSION = 1

Status = Literal["waiting", "running", "done", "interrupted", "failed"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """The state of one run. starts: number of starts. exit_code: of its last process, negative for a signal."""

    status: Status = "waiting"
    starts: int = 0
    exit_code: int | None = None
    cause: str = ""
    started: str = ""
    ended: str = ""

    @staticmethod
    def of(values: Mapping[str, Any]) -> Entry:
        """The inverse of ``dataclasses.asdict``; raises TypeError or ValueError for invalid values."""
        entry = Entry(**values)
        if entry.status not in get_args(Status) or not isinstance(entry.starts, int):
            raise ValueError(f"{values!r} is not an entry")
        # Its launcher is dead, or the directory would be locked, and no run outlives its launcher.
        return dataclasses.replace(entry, status="interrupted") if entry.status == "running" else entry


class LaunchState:
    """The entries of all runs by name. Use ``opened`` to create one."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self._path = path
        self._entries = dict(entries)
        self._warned = False

    @staticmethod
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[LaunchState]:
        """The state in ``folder``, which is created if needed and locked until the block ends.

        Raises RunDirError if another launcher has locked it or it cannot be created.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise RunDirError(f"{folder} cannot be used: {error}; check --train_dir and its permissions") from error
        try:
            _take(lock, folder)
            yield LaunchState(folder / NAME, _read(folder / NAME))
        finally:
            os.close(lock)

    def entry(self, name: str) -> Entry:
        """The entry of a run; a waiting one if the run was never started."""
        return self._entries.get(name, Entry())

    def started(self, name: str) -> None:
        """Record that its process was started."""
        starts = self.entry(name).starts + 1
        self._put(name, Entry("running", starts, started=local_time()))

    def ended(self, name: str, status: Status, exit_code: int | None, cause: str = "") -> None:
        """Record that its process has ended or could not be started."""
        entry = dataclasses.replace(self.entry(name), status=status, exit_code=exit_code, cause=cause)
        self._put(name, dataclasses.replace(entry, ended=local_time()))

    def _put(self, name: str, entry: Entry) -> None:
        """Save the entry; a failure is only a warning, because runs have their own records."""
        self._entries[name] = entry
        runs = {known: dataclasses.asdict(value) for known, value in self._entries.items()}
        try:
            atomic.write_json(self._path, {"format_version": FORMAT_VERSION, "runs": runs})
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("%s cannot be written: %s; the runs continue", self._path, error)


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 64, 0).decode(errors="replace").strip() or "just starting"
        raise RunDirError(
            f"{folder} is in use by another launcher ({holder}). Wait for it or stop it, or choose another run_name."
        ) from None
    except OSError as error:
        raise RunDirError(f"{folder} cannot be used: {error}; the file system must support file locks") from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()}".encode(), 0)


def _read(path: Path) -> dict[str, Entry]:
    """The entries of a file; an unreadable file is renamed, and there are no entries."""
    try:
        content = json.loads(path.read_bytes())
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format_version is {content['format_version']!r}, not {FORMAT_VERSION}")
        return {str(name): Entry.of(values) for name, values in content["runs"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        renamed = path.with_name(f"{path.name}.unreadable")
        _log.warning("%s cannot be read (%r); it is kept as %s, and a new one is started", path, error, renamed.name)
        with contextlib.suppress(OSError):
            path.replace(renamed)
        return {}


_HEAD = ("experiment", "status", "env steps", "return")


def statuses(jobs: Sequence[Job], launch_state: LaunchState) -> dict[str, Status]:
    """Status of each run by name: done if its own record says so, otherwise that of its entry."""
    return {job.name: _status(job, launch_state) for job in jobs}


def table(jobs: Sequence[Job], known: Mapping[str, str]) -> str:
    """A table with one line per run."""
    rows = [_HEAD, *(_row(job, known[job.name]) for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        f"{name:<{widths[0]}}  {status:<{widths[1]}}  {steps:>{widths[2]}}  {mean:>{widths[3]}}"
        for name, status, steps, mean in rows
    )


def failures(jobs: Sequence[Job], launch_state: LaunchState, known: Mapping[str, str]) -> list[str]:
    """A line for each failed run: the cause and the path of its log."""
    lines: list[str] = []
    for job in jobs:
        if known[job.name] == "failed":
            entry = launch_state.entry(job.name)
            code = "" if entry.exit_code is None else f" ({entry.exit_code})"
            lines.append(f"failed {job.name}{code}: {entry.cause or 'no output'} [{job.log_path}]")
    return lines


def result_line(jobs: Sequence[Job], launch_state: LaunchState, known: Mapping[str, str]) -> str:
    """The result as one line of JSON."""
    return json.dumps({"runs": [_facts(job, launch_state, known[job.name]) for job in jobs]}, allow_nan=False)


def _status(job: Job, launch_state: LaunchState) -> Status:
    return "done" if job.done else launch_state.entry(job.name).status


def _row(job: Job, status: str) -> tuple[str, str, str, str]:
    summary = job.summary()
    if summary is None:
        return job.name, status, "-", "-"
    mean = summary.episode_return_mean
    return job.name, status, str(summary.env_steps), "-" if mean is None else f"{mean:.3f}"


def _facts(job: Job, launch_state: LaunchState, status: str) -> dict[str, object]:
    summary, entry = job.summary(), launch_state.entry(job.name)
    return {
        "experiment": job.name,
        "status": status,
        "exit_code": entry.exit_code,
        "starts": entry.starts,
        "env_steps": None if summary is None else summary.env_steps,
        "episode_return_mean": None if summary is None else summary.to_dict()["episode_return_mean"],
        "run_dir": str(job.run_dir),
        "log": str(job.log_path),
    }
