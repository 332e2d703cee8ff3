"""Runs jobs on Slurm: writes batch scripts and submits them.

A script is self-contained: submitting it again resumes the run. Slurm sends SIGTERM to the run before its time is up,
so it saves; with a timeout the job is then requeued.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sfactory import atomic
from sfactory.config.flags import assigned
from sfactory.config.launcher import LauncherConfig
from sfactory.errors import ConfigError, ResourceError, SFactoryError
from sfactory.launch.jobs import Job, print_line

DEFAULT_TEMPLATE = """cd {{ CWD }}
{{ CMD }}
"""
_PLACE = re.compile(r"\{\{ *(\w+) *\}\}")
_SBATCH = "sbatch"
_SUBMIT_S = 60.0
_TIMED_OUT = 124  # exit code of coreutils' timeout
_KILL_AFTER_S = 60
_PLACES = ("CMD", "CWD", "NAME", "GPU", "CPU", "PARTITION", "TIMEOUT")


@dataclass(frozen=True)
class Batch:
    """Resources of a job and the template of its script."""

    folder: Path
    template: str
    gpus: int
    cpus: int
    partition: str | None
    timeout_s: int

    @staticmethod
    def of(config: LauncherConfig, runs: Path) -> Batch:
        """From the flags; ``runs``: the directory of the runs. Raises ConfigError with all problems."""
        problems: list[str] = []
        template = DEFAULT_TEMPLATE
        if config.slurm_sbatch_template is not None:
            try:
                template = Path(config.slurm_sbatch_template).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                problems.append(f"{assigned('slurm_sbatch_template', config.slurm_sbatch_template)}: {error}")
            else:
                problems += _template_problems(config.slurm_sbatch_template, template)
        folder = runs / "slurm" if config.slurm_workdir is None else Path(config.slurm_workdir)
        for path in (folder, runs, Path.cwd()):
            if not str(path.absolute()).isprintable() or '"' in str(path):
                problems.append(f"{str(path)!r}: a path in a batch script must not contain line breaks or quotes")
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
        log = str(job.log_path.absolute()).replace("%", "%%")  # sbatch interprets %j and the like
        options = [f"--job-name={job.name}", f'--output="{log}"', "--open-mode=append", "--ntasks=1"]
        options.append(f"--cpus-per-task={self.cpus}")
        if self.gpus:
            options.append(f"--gres=gpu:{self.gpus}")
        if self.partition is not None:
            options.append(f"--partition={self.partition}")
        options.append("--requeue")
        variables = [f"export {name}={shlex.quote(value)}" for name, value in job.env_vars.items()]
        values = (
            self._command(job),
            shlex.quote(os.getcwd()),
            job.name,
            str(self.gpus),
            str(self.cpus),
            self.partition or "",
            str(self.timeout_s),
        )
        places = dict(zip(_PLACES, values, strict=True))
        body = _PLACE.sub(lambda match: places[match[1]], self.template)
        # #SBATCH lines of a template must come before the first command.
        own = [line for line in body.splitlines() if line.startswith("#SBATCH")]
        rest = [line for line in body.splitlines() if not line.startswith(("#SBATCH", "#!"))]
        lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), *own, "", *variables, *rest]
        return "\n".join(lines) + "\n"

    def _command(self, job: Job) -> str:
        """The run under srun, which forwards signals; with a timeout, the job is requeued afterwards."""
        command = shlex.join(["srun", *job.command])
        if not self.timeout_s:
            return command
        # With --foreground timeout signals srun only; otherwise also its process group, and a second SIGTERM ends a run
        # without saving.
        return (
            f"timeout --foreground --kill-after={_KILL_AFTER_S} {self.timeout_s} {command}\n"
            f'code=$?\nif [ $code -eq {_TIMED_OUT} ]; then scontrol requeue "$SLURM_JOB_ID"; fi\n'
            "exit $code"
        )


def _template_problems(path: str, template: str) -> list[str]:
    where, names = assigned("slurm_sbatch_template", path), _PLACE.findall(template)
    unknown = [name for name in dict.fromkeys(names) if name not in _PLACES]
    problems = [f"{where}: {{{{ {name} }}}} is unknown; there are {', '.join(_PLACES)}" for name in unknown]
    if "CMD" not in names:
        problems.append(f"{where}: has no {{{{ CMD }}}}, which starts the run")
    return problems


def write_scripts(jobs: Sequence[Job], batch: Batch) -> list[Path]:
    """Write a script for each job; raises ResourceError."""
    paths: list[Path] = []
    try:
        batch.folder.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)  # Slurm does not create the directory of a log
            path = batch.folder / f"{job.name}.sh"
            atomic.write_text(path, batch.script(job))
            paths.append(path)
    except OSError as error:
        raise ResourceError(f"{batch.folder} cannot be written: {error}; see --slurm_workdir") from error
    return paths


def submit(paths: Sequence[Path], print_only: bool) -> dict[str, str]:
    """Submit the scripts, or print the commands that do; returns job numbers by name of the run.

    Raises SFactoryError at the first failure.
    """
    numbers: dict[str, str] = {}
    for path in paths:
        if print_only:
            print_line(shlex.join([_SBATCH, str(path)]))
            continue
        command = [_SBATCH, "--parsable", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SUBMIT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            stderr = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
            so_far = f"; submitted so far: {', '.join(numbers)}" if numbers else ""
            raise SFactoryError(f"{_SBATCH} {path} failed: {stderr or error}{so_far}") from error
        numbers[path.stem] = done.stdout.strip().partition(";")[0]
        print_line(f"submitted {path.stem} as job {numbers[path.stem]}")
    return numbers
