"""Room: runs as jobs of Slurm. In: jobs, what each may have. Out: batch scripts, and the numbers of submitted jobs.

A script is self-contained: submitting it again goes on with the run. Slurm tells the run of its end (SIGTERM goes to
what srun has started), so it saves; with a timeout it is then queued again.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sfactory import atomic
from sfactory.config.flags import assigned
from sfactory.config.launcher import LauncherConfig
from sfactory.errors import ConfigError, ResourceError, SFactoryError
from sfactory.launch.jobs import Job

PLAIN = """cd {{ CWD }}
{{ CMD }}
"""
_PLACE = re.compile(r"\{\{ *(\w+) *\}\}")
_SBATCH = "sbatch"
_SUBMIT_S = 60.0
_TIMED_OUT = 124  # exit code of coreutils' timeout
_KILL_AFTER_S = 60

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Batch:
    """How the scripts are written: what a job may have, and the lines of its script."""

    folder: Path
    template: str
    gpus: int
    cpus: int
    partition: str | None
    timeout_s: int

    @staticmethod
    def of(config: LauncherConfig, runs: Path) -> Batch:
        """As the flags say; ``runs``: the folder that holds the runs'. Raises ConfigError with all problems."""
        problems: list[str] = []
        template = PLAIN
        if config.slurm_sbatch_template is not None:
            try:
                template = Path(config.slurm_sbatch_template).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                problems.append(f"{assigned('slurm_sbatch_template', config.slurm_sbatch_template)}: {error}")
            else:
                problems += template_problems(config.slurm_sbatch_template, template)
        folder = runs / "slurm" if config.slurm_workdir is None else Path(config.slurm_workdir)
        for path in (folder, runs, Path.cwd()):
            if not str(path.absolute()).isprintable() or '"' in str(path):
                problems.append(f"{str(path)!r}: a path with line breaks or quotes cannot stand in a batch script")
        if not config.slurm_print_only and shutil.which(_SBATCH) is None:
            problems.append(
                f"--backend=slurm: there is no {_SBATCH} on this machine; --slurm_print_only=True writes "
                "the scripts alone"
            )
        if problems:
            raise ConfigError(problems)
        cpus = config.slurm_cpus_per_gpu * max(1, config.slurm_gpus_per_job)
        return Batch(folder, template, config.slurm_gpus_per_job, cpus, config.slurm_partition, config.slurm_timeout)

    def script(self, job: Job) -> str:
        """The batch script of a run."""
        options = [f"#SBATCH {option}" for option in self._options(job)]
        variables = [f"export {name}={shlex.quote(value)}" for name, value in job.env_vars.items()]
        places = {
            "CMD": self._command(job),
            "CWD": shlex.quote(os.getcwd()),
            "NAME": job.name,
            "GPU": str(self.gpus),
            "CPU": str(self.cpus),
            "PARTITION": self.partition or "",
            "TIMEOUT": str(self.timeout_s),
        }
        body = _PLACE.sub(lambda match: places[match[1]], self.template)
        # A template may bring lines for sbatch of its own: these count only before the first command.
        own = [line for line in body.splitlines() if line.startswith("#SBATCH")]
        rest = [line for line in body.splitlines() if not line.startswith(("#SBATCH", "#!"))]
        return "\n".join(["#!/bin/bash", *options, *own, "", *variables, *rest]) + "\n"

    def _options(self, job: Job) -> list[str]:
        log = str(job.log_path.absolute()).replace("%", "%%")  # sbatch reads %j and the like as patterns
        options = [f"--job-name={job.name}", f'--output="{log}"', "--open-mode=append", "--ntasks=1"]
        options.append(f"--cpus-per-task={self.cpus}")
        if self.gpus:
            options.append(f"--gres=gpu:{self.gpus}")
        if self.partition is not None:
            options.append(f"--partition={self.partition}")
        return [*options, "--requeue"]

    def _command(self, job: Job) -> str:
        """The run under srun, which passes signals on; with a timeout, the job is queued again when that is over."""
        command = shlex.join(["srun", *job.command])
        if not self.timeout_s:
            return command
        # In the foreground timeout signals srun alone; else it signals srun and then the group that srun is in, and a
        # second SIGTERM ends a run without saving.
        return (
            f"timeout --foreground --kill-after={_KILL_AFTER_S} {self.timeout_s} {command}\n"
            f'code=$?\nif [ $code -eq {_TIMED_OUT} ]; then scontrol requeue "$SLURM_JOB_ID"; fi\n'
            "exit $code"
        )


def template_problems(path: str, template: str) -> list[str]:
    """What is wrong with the lines that a user gives."""
    known = ("CMD", "CWD", "NAME", "GPU", "CPU", "PARTITION", "TIMEOUT")
    where = assigned("slurm_sbatch_template", path)
    names = _PLACE.findall(template)
    problems = [
        f"{where}: {{{{ {name} }}}} stands for nothing; there are {', '.join(known)}"
        for name in dict.fromkeys(names)
        if name not in known
    ]
    if "CMD" not in names:
        problems.append(f"{where}: has no {{{{ CMD }}}}, where the run is to be started")
    return problems


def write_scripts(jobs: Sequence[Job], batch: Batch) -> list[Path]:
    """A script for each; raises ResourceError if one cannot be written."""
    paths: list[Path] = []
    try:
        batch.folder.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for a log
            path = batch.folder / f"{job.name}.sh"
            atomic.write_text(path, batch.script(job))
            paths.append(path)
    except OSError as error:
        raise ResourceError(f"{batch.folder} cannot be written: {error}; see --slurm_workdir") from error
    return paths


def submit(paths: Sequence[Path], tell: Tell) -> dict[str, str]:
    """Hand the scripts to sbatch; job number by name of the run. Raises SFactoryError at the first that is refused."""
    numbers: dict[str, str] = {}
    for path in paths:
        try:
            done = subprocess.run(
                [_SBATCH, "--parsable", str(path)], capture_output=True, text=True, timeout=_SUBMIT_S, check=True
            )
        except subprocess.CalledProcessError as error:
            raise SFactoryError(
                f"{_SBATCH} {path} failed: {error.stderr.strip() or error}{_so_far(numbers)}"
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SFactoryError(f"{_SBATCH} {path} failed: {error}{_so_far(numbers)}") from error
        numbers[path.stem] = done.stdout.strip().partition(";")[0]
        tell(f"submitted {path.stem} as job {numbers[path.stem]}")
    return numbers


def submit_command(path: Path) -> str:
    """What submits a script by hand."""
    return shlex.join([_SBATCH, str(path)])


def _so_far(numbers: dict[str, str]) -> str:
    return f"; submitted so far: {', '.join(numbers)}" if numbers else ""
