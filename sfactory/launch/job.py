"""Room: runs with their command lines. In: a description, a folder. Out: jobs that the trainer would take."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sfactory.config.cli import read_command_line
from sfactory.errors import ConfigError
from sfactory.launch.description import MODULE, Planned, RunDescription
from sfactory.runtime.summary import Summary

_NAMED_AT_MOST = 3
_OURS = {"experiment": "the launcher names the runs", "train_dir": "it is a flag of the launcher"}


@dataclass(frozen=True)
class Job:
    """One run of sfactory.train in ``folder``. arguments: its whole command line, after the module."""

    name: str
    folder: Path
    arguments: tuple[str, ...]
    env_vars: Mapping[str, str]

    @property
    def run_dir(self) -> Path:
        """Where the run keeps its files."""
        return self.folder / self.name

    @property
    def log_path(self) -> Path:
        """What its process prints."""
        return self.folder / f"{self.name}.log"

    @property
    def command(self) -> list[str]:
        """What is executed."""
        return [sys.executable, "-m", MODULE, *self.arguments]

    @property
    def done(self) -> bool:
        """Whether it has been trained to its end with exactly these arguments, as its own record says."""
        try:
            record = json.loads((self.run_dir / "run.json").read_bytes())
            return bool(record["status"] == "done" and record["argv"] == list(self.arguments))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def summary(self) -> Summary | None:
        """How its last session ended; None if there is nothing that can be read."""
        return Summary.read(self.run_dir / "summary.json")


def folder_of(description: RunDescription, train_dir: str) -> Path:
    """What becomes the ``--train_dir`` of all runs of ``description``."""
    return Path(train_dir) / description.run_name


def jobs_of(description: RunDescription, train_dir: str, suffix: str) -> list[Job]:
    """All of its runs, each found good by the trainer's own reading of its command line.

    Raises ConfigError with everything that is wrong with any of them.
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
    problems = [f"--{name}: {why}; leave it out" for name, why in _OURS.items() if name in given]
    if "--help" in words or "-h" in words:
        problems.append("--help: starts no run; leave it out")
    if problems:
        return problems
    try:
        config = read_command_line(arguments, prog=MODULE).config
    except ConfigError as error:
        return error.problems
    if config.benchmark.benchmark:
        problems.append(
            "--benchmark=True: measures, and leaves no run that could be done or gone on with; leave it out"
        )
    if config.run.restart_behavior != "resume":
        problems.append(
            f"--restart_behavior={config.run.restart_behavior}: would begin anew whenever the launcher goes on; choose "
            "another run_name or --experiment_suffix for new runs"
        )
    if config.checkpoint.load_checkpoint_kind != "latest":
        problems.append(
            f"--load_checkpoint_kind={config.checkpoint.load_checkpoint_kind}: would go back whenever the launcher "
            "goes on; leave it out"
        )
    return problems


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
