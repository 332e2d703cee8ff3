"""The runs of a launcher: their command lines, their state in ``launch.json``, and the table of results.

Whether a run is done is decided by the run's own files (``Job.done``). ``launch.json`` keeps how often a run was
started, how it ended and why it failed, even if the run never had a directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from sfactory import atomic
from sfactory.config.argv import asks_for_help
from sfactory.config.flags import assigned, config_of, values_of
from sfactory.config.population_rules import learning_policies
from sfactory.config.resolve import GIVEN_EARLIER, Resolved, read_command_line
from sfactory.config.saved_config import CONFIG_NAME, FROZEN, NOTED, RUN_NAME, SUMMARY_NAME, read_config
from sfactory.config.schema import Config
from sfactory.errors import ConfigError, RunDirError, clean
from sfactory.experiment.provenance import local_time
from sfactory.experiment.run_dir import keep_unreadable, lock_file
from sfactory.experiment.summary import Summary
from sfactory.launch.run_description import MODULE, RunDescription
from sfactory.process.command import return_text
from sfactory.system.operating_system import close_lock

NAME = "launch.json"
LOCK_NAME = ".launch.lock"
SLURM_FOLDER = "slurm"
FORMAT_VERSION = 1

Status = Literal["waiting", "running", "done", "interrupted", "failed"]

_MAX_NAMES = 3
_RESERVED_NAMES = (NAME, f"{NAME}.unreadable", SLURM_FOLDER, CONFIG_NAME)
_LOG = ".log"
_RESERVED_FLAGS = {
    "experiment": "the launcher names the runs",
    "train_dir": "it is a flag of the launcher",
    "print_config": "starts no run",
}
# The only value of a flag that a run of a launcher may have, and why.
_FIXED_FLAGS = {
    "benchmark": (False, "a benchmark is not a run that can be done or resumed; leave it out"),
    "restart_behavior": (
        "resume",
        "would restart the run whenever the launcher resumes; choose another run_name or --experiment_suffix for new "
        "runs",
    ),
    "load_checkpoint_kind": ("latest", "would go back whenever the launcher resumes; leave it out"),
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One run of sfactory.train in ``folder``.

    arguments: its command line after the module. config: what they ask for; changed: a text for each setting that an
    earlier start of the run had otherwise.
    """

    name: str
    folder: Path
    arguments: tuple[str, ...]
    env_vars: Mapping[str, str]
    config: Config = field(default_factory=Config)
    changed: tuple[str, ...] = ()

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.folder / self.name

    @property
    def log_path(self) -> Path:
        """File with the output of its process."""
        return self.folder / f"{self.name}{_LOG}"

    @property
    def command(self) -> list[str]:
        """The command to execute."""
        return [sys.executable, "-m", MODULE, *self.arguments]

    @property
    def done(self) -> bool:
        """Whether its run.json says that it has finished, and starting it again would train no further.

        It would not if a limit is reached, of several policies by each that learns; of a run that has ended before, if
        it was started with exactly these arguments and their limits are not higher now.
        """
        try:
            record = atomic.read_json(self.run_dir / RUN_NAME)
            if record["status"] != "done":
                return False
            same = record["argv"] == list(self.arguments)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return self._limit_is_reached or (same and not self._limits_are_higher)

    @property
    def _limits(self) -> tuple[float, float]:
        """Env steps and seconds of training."""
        run = self.config.run
        return run.most_env_steps(self.config.frames_per_step), run.train_for_seconds

    @property
    def _limit_is_reached(self) -> bool:
        summary = Summary.read(self.run_dir / SUMMARY_NAME)
        if summary is None:
            return False
        policies = self.config.population.num_policies
        of_each = (summary.of_policy(policy, policies) for policy in learning_policies(self.config))
        steps = min(each.get("env_steps") or 0 for each in of_each)  # limits are those of each policy
        return any(map(operator.ge, (steps, summary.train_seconds), self._limits))

    @property
    def _limits_are_higher(self) -> bool:
        """Whether a limit is higher than when the run has trained; a file of flags may have it."""
        try:
            saved = read_config(self.run_dir)
        except ConfigError:
            return False
        if saved is None:
            return False
        return any(map(operator.gt, self._limits, replace(self, config=config_of(saved.values))._limits))


def print_line(text: str) -> None:
    """Print a line to stderr; a closed terminal is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def jobs_of(description: RunDescription, folder: Path, suffix: str) -> list[Job]:
    """All runs of ``description`` in ``folder``; raises ConfigError with all problems of all runs."""
    jobs: list[Job] = []
    problems: dict[str, Sequence[str]] = {}
    for run in description.runs(suffix):
        arguments = (*run.words, f"--train_dir={folder}", f"--experiment={run.name}")
        found = _problems_of_words(run.words)
        try:
            if not found:
                resolved = read_command_line(arguments)
                found = _problems_of_values(values_of(resolved.config))
                changed = (*resolved.changed, *_kept(resolved))
                jobs.append(Job(run.name, folder, arguments, run.env_vars, resolved.config, changed))
        except ConfigError as error:
            found = error.problems
        problems[run.name] = [*_name_problems(run.name), *found]
    if lines := by_text(problems):
        raise ConfigError(lines)
    return jobs


def by_text(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each text, that begins with the names of the runs that have it; ``texts``: by the name of the run."""
    names_by_text: dict[str, list[str]] = {}
    for name, own in texts.items():
        for text in own:
            names_by_text.setdefault(text, []).append(name)
    lines = []
    for text, names in names_by_text.items():
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        lines.append(f"{', '.join(names[:_MAX_NAMES])}{more}: {text}")
    return lines


def _kept(resolved: Resolved) -> list[str]:
    """A text for each setting of training that only an earlier start of the run has given."""
    values = values_of(resolved.config)
    kept = [name for name in NOTED | FROZEN if resolved.sources[name] == GIVEN_EARLIER]
    return [f"{assigned(name, values[name])}: given at an earlier start, which the run keeps" for name in sorted(kept)]


def _name_problems(name: str) -> list[str]:
    """Why a run may not have this name, which may end with a suffix."""
    if name not in _RESERVED_NAMES and not name.endswith(_LOG):
        return []
    taken = f"{', '.join(_RESERVED_NAMES)} and all that ends with {_LOG}"
    return [f"files beside the runs have such names ({taken}); choose another base_name or --experiment_suffix"]


def _problems_of_words(words: Sequence[str]) -> list[str]:
    given = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    problems = [f"--{name}: {why}; leave it out" for name, why in _RESERVED_FLAGS.items() if name in given]
    if asks_for_help(words):
        problems.append("--help: starts no run; leave it out")
    if any("\0" in word for word in words):
        problems.append(r"a value has the character \0, which no command line can have; leave it out")
    return problems


def _problems_of_values(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={values[name]}: {why}" for name, (only, why) in _FIXED_FLAGS.items() if values[name] != only]


@dataclass(frozen=True)
class Entry:
    """The state of one run.

    starts: number of starts. exit_code: of its last process, negative for a signal. job: what sbatch has printed.
    """

    status: Status = "waiting"
    starts: int = 0
    exit_code: int | None = None
    cause: str = ""
    started: str = ""
    ended: str = ""
    job: str = ""

    @staticmethod
    def of(values: Mapping[str, Any]) -> Entry:
        """The inverse of ``dataclasses.asdict``; raises TypeError or ValueError for invalid values."""
        entry = Entry(**values)
        if entry.status not in get_args(Status) or not isinstance(entry.starts, int) or not isinstance(entry.job, str):
            raise ValueError(f"{values!r} is not an entry")
        # Its launcher is dead, or the directory would be locked, and no run outlives its launcher.
        return replace(entry, status="interrupted") if entry.status == "running" else entry


class LaunchState:
    """The entries of all runs by name. Use ``opened`` to create one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = _read(path)
        self._warned = False

    @staticmethod
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[LaunchState]:
        """Create and lock ``folder`` until the block ends; raises RunDirError if that fails, or a run is in it."""
        if (folder / CONFIG_NAME).exists():
            raise RunDirError(f"{folder} is the folder of a training run; choose another run_name or --train_dir")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = lock_file(folder / LOCK_NAME, "Wait for that launcher or stop it, or choose another run_name.")
        except OSError as error:
            raise RunDirError(
                f"{folder} cannot be used: {error}; check --train_dir and its permissions; the file system must "
                "support file locks"
            ) from error
        try:
            yield LaunchState(folder / NAME)
        finally:
            close_lock(lock)

    def entry(self, name: str) -> Entry:
        """The entry of a run; a waiting one if the run was never started."""
        return self._entries.get(name, Entry())

    def started(self, name: str) -> None:
        """Record that its process was started."""
        before = self.entry(name)
        self._put(name, Entry("running", before.starts + 1, started=local_time(), job=before.job))

    def ended(self, name: str, status: Status, exit_code: int | None, cause: str = "") -> None:
        """Record that its process has ended or could not be started."""
        before = self.entry(name)
        self._put(name, Entry(status, before.starts, exit_code, cause, before.started, local_time(), before.job))

    def submitted(self, name: str, job: str) -> None:
        """Record that it was submitted to Slurm."""
        self._put(name, replace(self.entry(name), job=job))

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


def _read(path: Path) -> dict[str, Entry]:
    """The entries of a file; an unreadable file is renamed, and there are no entries."""
    try:
        content = atomic.read_json(path)
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format_version is {content['format_version']!r}, not {FORMAT_VERSION}")
        return {str(name): Entry.of(values) for name, values in content["runs"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        with contextlib.suppress(OSError):
            keep_unreadable(path, error)
        return {}


def say_changed(jobs: Sequence[Job]) -> None:
    """Print which settings of runs were edited after an earlier start, and what becomes of that."""
    for is_done, consequence in (
        (
            True,
            "are done, and nothing is trained for settings that differ; for runs with them choose another run_name or "
            "--experiment_suffix, or raise a limit so that these runs train further with them",
        ),
        (False, "continue, from now on with settings that differ"),
    ):
        texts = {job.name: job.changed for job in jobs if job.done == is_done and job.changed}
        if texts:
            print_line(f"{len(texts)} runs {consequence}:")
            for line in by_text(texts):
                print_line(f"  {line}")


def results(jobs: Sequence[Job], todo: Sequence[Job], launch_state: LaunchState) -> list[dict[str, Any]]:
    """Facts about each run. A run is done if its own files say so. ``todo``: those that were started."""
    facts: list[dict[str, Any]] = []
    started = {job.name for job in todo}
    for job in jobs:
        summary, entry = Summary.read(job.run_dir / SUMMARY_NAME), launch_state.entry(job.name)
        known = {} if summary is None else summary.to_dict()
        status = "waiting" if entry.status == "done" else entry.status  # it was done, and a limit was raised
        facts.append(
            {
                "experiment": job.name,
                "status": "done" if job.done else status,
                "exit_code": entry.exit_code,
                "starts": entry.starts,
                "changed": [] if job.name in started else list(job.changed),
                "env_steps": known.get("env_steps"),
                "episode_return_mean": known.get("episode_return_mean"),
                "run_dir": str(job.run_dir),
                "log": str(job.log_path),
            }
        )
    return facts


def print_results(runs: Sequence[Mapping[str, Any]], launch_state: LaunchState) -> None:
    """Print a table of ``results`` with one line per run, and the cause and the log of each failed run."""
    rows = [["experiment", "status", "env steps", "return"]]
    for run in runs:
        steps, mean = run["env_steps"], run["episode_return_mean"]
        shown = "-" if steps is None else str(steps), return_text(mean)
        rows.append([run["experiment"], run["status"], *shown])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, status, steps, mean in rows:
        print_line(f"{name:<{widths[0]}}  {status:<{widths[1]}}  {steps:>{widths[2]}}  {mean:>{widths[3]}}")
    for run in runs:
        if run["status"] == "failed":
            code = "" if run["exit_code"] is None else f" ({run['exit_code']})"
            cause = clean(launch_state.entry(run["experiment"]).cause) or "no output"
            print_line(f"failed {run['experiment']}{code}: {cause} [{run['log']}]")
