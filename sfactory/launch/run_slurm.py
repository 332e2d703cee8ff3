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
from sfactory.launch.jobs import SLURM_FOLDER, Job, LaunchState, by_text, print_line
from sfactory.process.signals import Interrupts

DEFAULT_TEMPLATE = "cd {{ CWD }}\n{{ CMD }}\n"
_PLACE = re.compile(r"\{\{ *(\w+) *\}\}")
_SBATCH, _SQUEUE = "sbatch", "squeue"
_ANSWER_S = 60.0
_OTHER = "other settings or resources than those of the job that is in the queue"
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

    def script_path(self, job: Job) -> Path:
        """Where the script of a run is."""
        return self._folder / f"{job.name}.sh"

    def queued(self, jobs: Sequence[Job], launch_state: LaunchState) -> dict[str, str]:
        """The numbers of the jobs that are in Slurm's queue, by the names of their runs.

        Says so, also if such a job was submitted with another script than it would be now. Raises SFactoryError.
        """
        printed = {job.name: launch_state.entry(job.name).job.partition(";") for job in jobs}
        clusters = {cluster for number, _, cluster in printed.values() if number}
        if self._config.slurm_print_only or not clusters:
            return {}
        listed = {cluster: _numbers_in_queue(cluster) for cluster in clusters}
        queued = {name: number for name, (number, _, cluster) in printed.items() if number in listed.get(cluster, ())}
        if queued:
            print_line(f"{len(queued)} runs are in Slurm's queue already, and are not submitted again")
        other = [job.name for job in jobs if job.name in queued and self._has_other_script(job)]
        for line in by_text({name: [_OTHER] for name in other}):
            cancel = "; ".join(
                shlex.join(["scancel", *(["-M", cluster] if cluster else []), *numbers])
                for cluster in sorted(clusters)
                if (numbers := [queued[name] for name in other if printed[name][2] == cluster])
            )
            print_line(f"{line}; if these are to count: {cancel}, and the same command again")
        return queued

    def _has_other_script(self, job: Job) -> bool:
        try:
            return atomic.read_bytes(self.script_path(job)) != self._script(job).encode()
        except OSError:  # it was submitted from another folder
            return False

    def write_scripts(self, jobs: Sequence[Job]) -> list[Path]:
        """Write a script for each job; raises ResourceError."""
        paths: list[Path] = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for job in jobs:
                job.folder.mkdir(parents=True, exist_ok=True)  # Slurm does not create the directory of a log
                path = self.script_path(job)
                atomic.write_text(path, self._script(job))
                paths.append(path)
        except OSError as error:
            raise ResourceError(f"{self._folder} cannot be written: {error}; see --slurm_workdir") from error
        return paths

    def submit(self, paths: Sequence[Path], launch_state: LaunchState, interrupts: Interrupts) -> dict[str, str]:
        """Submit the scripts until a signal comes, or print the commands that do; returns job numbers by run.

        Raises SFactoryError.
        """
        numbers: dict[str, str] = {}
        for path in paths:
            if interrupts.count:
                print_line(f"{len(numbers)} of {len(paths)} runs were submitted; the same command submits the others")
                break
            if self._config.slurm_print_only:
                print_line(shlex.join([_SBATCH, str(path)]))
                continue
            try:
                printed = _output_of([_SBATCH, "--parsable", str(path)])
            except SFactoryError as error:
                so_far = f"; {len(numbers)} runs were submitted before, and the same command submits the others"
                raise SFactoryError(f"{error}{so_far if numbers else ''}") from error
            launch_state.submitted(path.stem, printed)
            numbers[path.stem] = printed.partition(";")[0]
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


def _output_of(command: Sequence[str]) -> str:
    """What one of Slurm's programs prints; a terminal's Ctrl-C does not reach it. Raises SFactoryError if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=True, start_new_session=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        stderr = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
        raise SFactoryError(f"{shlex.join(command)} failed: {stderr or error}") from error
    return done.stdout.strip()


def _numbers_in_queue(cluster: str) -> set[str]:
    """Numbers of all jobs of this user that wait or run; cluster: "" for the one of this machine."""
    command = [_SQUEUE, "--noheader", f"--user={os.getuid()}", "--format=%A"]
    try:
        return set(_output_of([*command, *([f"--clusters={cluster}"] if cluster else [])]).split())
    except SFactoryError as error:
        raise SFactoryError(
            f"{error}; so it is not known which runs are in the queue, and nothing was submitted; try again later, or "
            "--slurm_print_only=True writes the scripts alone"
        ) from error


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
