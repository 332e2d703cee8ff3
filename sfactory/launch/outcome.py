"""Room: how all runs stand. In: jobs and the ledger. Out: a table, lines on failures, one JSON line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sfactory.launch.job import Job
from sfactory.launch.ledger import Ledger, Status

_HEAD = ("experiment", "status", "env steps", "return")


def statuses(jobs: Sequence[Job], ledger: Ledger) -> dict[str, Status]:
    """How each run stands, by its name: done if its own record says so, otherwise what the ledger tells."""
    return {job.name: _status(job, ledger) for job in jobs}


def table(jobs: Sequence[Job], known: Mapping[str, str]) -> str:
    """One line a run, under a head."""
    rows = [_HEAD, *(_row(job, known[job.name]) for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        f"{name:<{widths[0]}}  {status:<{widths[1]}}  {steps:>{widths[2]}}  {mean:>{widths[3]}}"
        for name, status, steps, mean in rows
    )


def failures(jobs: Sequence[Job], ledger: Ledger, known: Mapping[str, str]) -> list[str]:
    """A line for each run that has failed: with what, and where to read more."""
    lines: list[str] = []
    for job in jobs:
        if known[job.name] == "failed":
            entry = ledger.entry(job.name)
            code = "" if entry.exit_code is None else f" ({entry.exit_code})"
            lines.append(f"failed {job.name}{code}: {entry.cause or 'it said nothing'} [{job.log_path}]")
    return lines


def result_line(jobs: Sequence[Job], ledger: Ledger, known: Mapping[str, str]) -> str:
    """The result for programs."""
    return json.dumps({"runs": [_facts(job, ledger, known[job.name]) for job in jobs]}, allow_nan=False)


def _status(job: Job, ledger: Ledger) -> Status:
    return "done" if job.done else ledger.entry(job.name).status


def _row(job: Job, status: str) -> tuple[str, str, str, str]:
    summary = job.summary()
    if summary is None:
        return job.name, status, "-", "-"
    mean = summary.episode_return_mean
    return job.name, status, str(summary.env_steps), "-" if mean is None else f"{mean:.3f}"


def _facts(job: Job, ledger: Ledger, status: str) -> dict[str, object]:
    summary, entry = job.summary(), ledger.entry(job.name)
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
