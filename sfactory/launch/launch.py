"""One call of the launcher: starts runs on this machine or on Slurm; returns a line for stdout and an exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from sfactory.config.launcher import LauncherConfig
from sfactory.errors import ExitCode
from sfactory.launch.jobs import Job, LaunchState, jobs_of, print_line, print_results, results, say_changed
from sfactory.launch.run_description import description_of
from sfactory.launch.run_processes import VISIBLE, Gpus, LocalRuns, devices
from sfactory.launch.run_slurm import Batch
from sfactory.process.signals import Interrupts
from sfactory.system.resources import require_linux


def launch(config: LauncherConfig, command: str, interrupts: Interrupts) -> tuple[str, int]:
    """Start all runs that are not done; returns the line for stdout and the exit code.

    ``command``: resumes the runs. Raises SFactoryError for invalid input before any run is started.
    """
    description = description_of(config.run)
    folder = Path(config.train_dir) / str(description.run_name)
    jobs = jobs_of(description, folder, config.experiment_suffix)
    gpus = Gpus([None], config.max_parallel)
    if config.experiments_per_gpu != -1:
        gpus = Gpus(devices(config.num_gpus, os.environ.get(VISIBLE)), config.experiments_per_gpu)
    batch = Batch(config, folder) if config.backend == "slurm" else None
    if batch is None:
        require_linux("starting several runs", "start them one after the other (sfactory train), or on Slurm")
    with LaunchState.opened(folder) as launch_state:
        todo = [job for job in jobs if not job.done]
        if len(todo) < len(jobs):
            print_line(f"{len(jobs) - len(todo)} of {len(jobs)} runs are done already")
        say_changed(jobs)
        interrupts.raising = False  # count signals from here on: a run that is being started must not be lost
        if batch is not None:
            line = _to_slurm(jobs, todo, batch, launch_state, interrupts)
            return line, interrupts.exit_code if interrupts.count else int(ExitCode.DONE)
        LocalRuns(todo, launch_state, interrupts, config.max_parallel, gpus, config.pause_between).run()
        runs = results(jobs, todo, launch_state)
        print_results(runs, launch_state)
    code = int(ExitCode.DONE)
    if any(run["status"] != "done" for run in runs):
        code = interrupts.exit_code if interrupts.count else int(ExitCode.FAULTS)
        print_line(f"to resume the runs that are not done: {command}")
    return json.dumps({"runs": runs}, allow_nan=False), code


def _to_slurm(
    jobs: Sequence[Job], todo: Sequence[Job], batch: Batch, launch_state: LaunchState, interrupts: Interrupts
) -> str:
    queued = batch.queued(todo, launch_state)
    paths = batch.write_scripts([job for job in todo if job.name not in queued])
    numbers = {**queued, **batch.submit(paths, launch_state, interrupts)}
    unfinished = {job.name for job in todo}
    facts = [
        {
            "experiment": job.name,
            "status": "waiting" if job.name in unfinished else "done",
            "script": str(batch.script_path(job)) if job.name in unfinished else None,
            "job": numbers.get(job.name),
            "changed": [] if job.name in unfinished else list(job.changed),
            "run_dir": str(job.run_dir),
            "log": str(job.log_path),
        }
        for job in jobs
    ]
    return json.dumps({"runs": facts})
