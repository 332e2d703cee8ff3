"""Runs jobs on Slurm: writes batch scripts and submits them; submitting a script again resumes its run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sfactory import atomic
from sfactory.clock import RUN_MOST_S
from sfactory.config.flags import assigned
from sfactory.config.launcher import LauncherConfig
from sfactory.errors import ConfigError, ResourceError, SFactoryError
from sfactory.launch.jobs import SLURM_FOLDER, Job, print_line

DEFAULT_TEMPLATE = "cd {{ CWD }}\n{{ CMD }}\n"
_PLACE = re.compile(r"\{\{ *(\w+) *\}\}")
_SBATCH = "sbatch"
_SUBMIT_S = 60.0
_TIMED_OUT = 124  # exit code of coreutils' timeout
_PLACES = ("CMD", "CWD", "NAME", "GPU", "CPU", "PARTITION", "TIMEOUT")


class Batch:
    """The batch scripts of a launcher in ``folder``, made from its flags and a template."""

    def __init__(self, config: LauncherConfig, runs: Path) -> None:
        """``runs``: the directory of the runs. Raises ConfigError with all problems."""
        self._config = config
        self._cpus = config.slurm_cpus_per_gpu * max(1, config.slurm_gpus_per_job)
        self._template, problems = _read_template(config.slurm_sbatch_template)
        self._folder = runs / SLURM_FOLDER if config.slurm_workdir is None else Path(config.slurm_workdir)
        for path in (self._folder, runs, Path.cwd()):
            if not str(path.absolute()).isprintable() or '"' in str(path):
                problems.append(f"{str(path)!r}: a path in a batch script must not contain line breaks or quotes")
        if not config.slurm_print_only and shutil.which(_SBATCH) is None:
            problems.append(
                f"--backend=slurm: there is no {_SBATCH} on this machine; --slurm_print_only=True writes "
                "the scripts alone"
            )
        if problems:
            raise ConfigError(problems)

    def write_scripts(self, jobs: Sequence[Job]) -> list[Path]:
        """Write a script for each job; raises ResourceError."""
        paths: list[Path] = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for job in jobs:
                job.folder.mkdir(parents=True, exist_ok=True)  # Slurm does not create the directory of a log
                path = self._folder / f"{job.name}.sh"
                atomic.write_text(path, self._script(job))
                paths.append(path)
        except OSError as error:
            raise ResourceError(f"{self._folder} cannot be written: {error}; see --slurm_workdir") from error
        return paths

    def submit(self, paths: Sequence[Path]) -> dict[str, str]:
        """Submit the scripts, or print the commands that do; returns job numbers by run. Raises SFactoryError."""
        numbers: dict[str, str] = {}
        for path in paths:
            if self._config.slurm_print_only:
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

    def _script(self, job: Job) -> str:
        log = str(job.log_path.absolute()).replace("%", "%%")  # sbatch interprets %j and the like
        gpus, partition = self._config.slurm_gpus_per_job, self._config.slurm_partition
        options = [
            f"--job-name={job.name}",
            f'--output="{log}"',
            "--open-mode=append",
            "--ntasks=1",
            f"--cpus-per-task={self._cpus}",
            *([f"--gres=gpu:{gpus}"] if gpus else []),
            *([] if partition is None else [f"--partition={partition}"]),
            "--requeue",
        ]
        # Since Slurm 22.05 a step does not inherit --cpus-per-task of its job, and would get one core.
        cores = f"export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-{self._cpus}}}"
        variables = [cores, *(f"export {name}={shlex.quote(value)}" for name, value in job.env_vars.items())]
        places = {
            "CMD": self._command(job),
            "CWD": shlex.quote(os.getcwd()),
            "NAME": job.name,
            "GPU": str(gpus),
            "CPU": str(self._cpus),
            "PARTITION": partition or "",
            "TIMEOUT": str(self._config.slurm_timeout),
        }
        # A value may have line breaks, so lines are those of the template.
        body = [(line, _PLACE.sub(lambda match: places[match[1]], line)) for line in self._template.splitlines()]
        # #SBATCH lines of a template must come before the first command.
        own = [filled for line, filled in body if line.startswith("#SBATCH")]
        rest = [filled for line, filled in body if not line.startswith(("#SBATCH", "#!"))]
        lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), *own, "", *variables, *rest]
        return "\n".join(lines) + "\n"

    def _command(self, job: Job) -> str:
        """The run under srun; with a timeout, the job is requeued afterwards."""
        timeout_s = self._config.slurm_timeout
        if not timeout_s:
            return shlex.join(["srun", *job.command])
        # timeout runs below srun, which does not pass SIGTERM on, but kills the step. With --foreground it signals the
        # run only, otherwise its process group, too.
        timeout = ["timeout", "--foreground", f"--kill-after={RUN_MOST_S:.0f}", str(timeout_s)]
        run = shlex.join(["srun", *timeout, *job.command])
        requeue = f'code=$?; if [ $code -eq {_TIMED_OUT} ]; then scontrol requeue "$SLURM_JOB_ID"; fi; exit $code'
        # One command, so that a template may use it as any other, and its own set -e does not end this before.
        return shlex.join(["bash", "-c", f"{run}; {requeue}"])


def _read_template(path: str | None) -> tuple[str, list[str]]:
    """The template of the scripts, and its problems."""
    if path is None:
        return DEFAULT_TEMPLATE, []
    where = assigned("slurm_sbatch_template", path)
    try:
        template = atomic.read_bytes(path).decode()
    except (OSError, ValueError) as error:
        return "", [f"{where}: {error}"]
    names = _PLACE.findall(template)
    unknown = [name for name in dict.fromkeys(names) if name not in _PLACES]
    problems = [f"{where}: {{{{ {name} }}}} is unknown; there are {', '.join(_PLACES)}" for name in unknown]
    if "CMD" not in names:
        problems.append(f"{where} has no {{{{ CMD }}}}, which starts the run")
    return template, problems
