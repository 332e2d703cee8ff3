"""Batch scripts for Slurm do what they say: here, with stand-ins for its programs that run a job at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from tests.support.launches import description
from tests.support.long import LONG
from tests.support.source import ROOT

# Time is up once the run trains, because start-up takes as long as the machine needs. A SIGALRM has the timeout of
# coreutils act at once; it does all the rest itself. sbatch has a minute, in which this one runs the whole job.
TIMEOUT = """
$REAL_TIMEOUT "$@" & job=$!
for _ in {1..450}; do
    kill -0 $job && ! grep -qs "first env step" "$LOG" && sleep 0.1 || break
done
kill -ALRM $job
wait $job
"""
PROGRAMS = {
    "sbatch": 'test "$1" = --parsable && SLURM_JOB_ID=17 bash "$2" >&2 && echo "17;cluster"',
    # SIGTERM to srun itself ends its step by force.
    "srun": '"$@" & step=$!; trap "kill -KILL $step" TERM; wait $step',
    "scontrol": 'echo "$@" >> "$REQUEUED"',
    "timeout": TIMEOUT,
}
LONG_S = 1000  # longer than any test


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the programs first on the path; the file in which scontrol notes its arguments."""
    folder, real_timeout = tmp_path / "programs", shutil.which("timeout")
    assert real_timeout is not None
    folder.mkdir()
    for name, body in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("REQUEUED", str(tmp_path / "requeued"))
    monkeypatch.setenv("REAL_TIMEOUT", real_timeout)
    monkeypatch.setenv("LOG", str(tmp_path / "train_dir" / "many" / "run" / "sf_log.txt"))
    return tmp_path / "requeued"


def launched(text: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    file = folder / "runs.toml"
    file.write_text(text)
    argv = [sys.executable, "-m", "sfactory.launcher", f"--run={file}", f"--train_dir={folder / 'train_dir'}", *flags]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.usefixtures("slurm")
@pytest.mark.long
def test_submitted_scripts_train_and_finished_runs_are_not_submitted_again(tmp_path: Path) -> None:
    text = description("many", {"train_for_env_steps": 2000}, 'env_vars = {GREETING = "it\'s me"}')

    done = launched(text, tmp_path, "--backend=slurm", "--slurm_gpus_per_job=0")

    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert (run["experiment"], run["job"], run["status"]) == ("run", "17", "waiting")
    assert "submitted run as job 17" in done.stderr
    summary = json.loads((Path(run["run_dir"]) / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"] >= 2000) == ("done", True)
    again = launched(text, tmp_path, "--backend=slurm", "--slurm_gpus_per_job=0")
    assert "1 of 1 runs are done already" in again.stderr
    assert json.loads(again.stdout)["runs"][0]["script"] is None


@LONG
def test_run_that_does_not_end_in_time_saves_and_is_queued_again(tmp_path: Path, slurm: Path) -> None:
    text = description("many", {"train_for_env_steps": 10**9, "save_every_sec": 1000}, "")

    launched(text, tmp_path, "--backend=slurm", f"--slurm_timeout={LONG_S}")

    assert slurm.read_text() == "requeue 17\n"
    summary = json.loads((tmp_path / "train_dir" / "many" / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert list((tmp_path / "train_dir" / "many" / "run" / "checkpoint_p0").glob("*.pth"))


def test_without_slurm_the_scripts_alone_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = description("many", {"train_for_env_steps": 2000}, "grid = {seed = [1, 2]}")
    monkeypatch.setenv("PATH", str(tmp_path))

    refused = launched(text, tmp_path, "--backend=slurm")
    assert refused.returncode == ExitCode.REFUSED
    assert "there is no sbatch on this machine" in refused.stderr
    assert not (tmp_path / "train_dir").exists()

    written = launched(text, tmp_path, "--backend=slurm", "--slurm_print_only=True", f"--slurm_workdir={tmp_path}/work")
    assert written.returncode == 0, written.stderr
    scripts = [tmp_path / "work" / f"run_seed_{seed}.sh" for seed in (1, 2)]
    assert [line for line in written.stderr.splitlines() if "sbatch" in line] == [f"sbatch {path}" for path in scripts]
    assert all(path.is_file() for path in scripts)
