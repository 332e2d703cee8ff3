"""One call of the launcher: starts runs on this machine or on Slurm; returns a line for stdout and an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence

from sfactory.config.launcher import LauncherConfig
from sfactory.errors import ExitCode
from sfactory.launch.jobs import Job, LaunchState, failures, folder_of, jobs_of, result_line, statuses, table
from sfactory.launch.run_description import description_of
from sfactory.launch.run_processes import VISIBLE, Gpus, LocalRuns, devices
from sfactory.launch.run_slurm import Batch, submit, submit_command, write_scripts
from sfactory.process.signals import Interrupts


class Launcher:
    """``command``: the command line of this launcher, which also resumes its runs."""

    def __init__(self, config: LauncherConfig, command: str, interrupts: Interrupts) -> None:
        self._config, self._command, self._interrupts = config, command, interrupts

    def run(self) -> tuple[str, int]:
        """Start all runs that are not done. Returns the line for stdout and the exit code.

        Raises SFactoryError for invalid input before any run is started.
        """
        config = self._config
        description = description_of(config.run)
        jobs = jobs_of(description, config.train_dir, config.experiment_suffix)
        folder = folder_of(description, config.train_dir)
        gpus = _gpus(config)
        batch = Batch.of(config, folder) if config.backend == "slurm" else None
        with LaunchState.opened(folder) as launch_state:
            todo = [job for job in jobs if not job.done]
            if len(todo) < len(jobs):
                print_line(f"{len(jobs) - len(todo)} of {len(jobs)} runs are done already")
            if batch is not None:
                return self._to_slurm(jobs, todo, batch), int(ExitCode.DONE)
            return self._here(jobs, todo, gpus, launch_state)

    def _here(
        self, jobs: Sequence[Job], todo: Sequence[Job], gpus: Gpus | None, launch_state: LaunchState
    ) -> tuple[str, int]:
        config, interrupts = self._config, self._interrupts
        interrupts.raising = False  # count signals from here on: a run that is being started must not be lost
        LocalRuns(
            todo,
            launch_state,
            interrupts,
            print_line,
            max_parallel=config.max_parallel,
            gpus=gpus,
            pause_s=config.pause_between,
        ).run()
        known = statuses(jobs, launch_state)
        print_line(table(jobs, known))
        for line in failures(jobs, launch_state, known):
            print_line(line)
        code = int(ExitCode.DONE)
        if any(status != "done" for status in known.values()):
            code = interrupts.exit_code if interrupts.count else int(ExitCode.FAULTS)
            print_line(f"to go on with what is not done: {self._command}")
        return result_line(jobs, launch_state, known), code

    def _to_slurm(self, jobs: Sequence[Job], todo: Sequence[Job], batch: Batch) -> str:
        paths = write_scripts(todo, batch)
        numbers: dict[str, str] = {}
        if self._config.slurm_print_only:
            for path in paths:
                print_line(submit_command(path))
        else:
            numbers = submit(paths, print_line)
        scripts = {path.stem: str(path) for path in paths}
        facts = [
            {
                "experiment": job.name,
                "status": "waiting" if job.name in scripts else "done",
                "script": scripts.get(job.name),
                "job": numbers.get(job.name),
                "run_dir": str(job.run_dir),
                "log": str(job.log_path),
            }
            for job in jobs
        ]
        return json.dumps({"runs": facts})


def print_line(text: str) -> None:
    """Print a line to stderr; a closed terminal is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _gpus(config: LauncherConfig) -> Gpus | None:
    if config.experiments_per_gpu == -1:
        return None
    return Gpus(devices(config.num_gpus, os.environ.get(VISIBLE)), config.experiments_per_gpu)
