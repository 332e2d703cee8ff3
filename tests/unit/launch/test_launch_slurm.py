"""Batch scripts request resources and start the run."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from sfactory.config.launcher import LauncherConfig
from sfactory.errors import ConfigError
from sfactory.launch.jobs import Job
from sfactory.launch.run_slurm import Batch
from tests.support.source import ROOT, documents

CONFIG = LauncherConfig(run="x:Y", backend="slurm", slurm_print_only=True)
# What is at work in the tutorial's script: SIGTERM to srun kills its step, one to the step has the ranks save.
SRUN = """
trap 'echo killed > srun_ends; exit 137' TERM
echo "$@" > starting; mv starting started
for _ in {1..600}; do test -e signalled && echo saved > srun_ends && exit 1; sleep 0.1; done
"""
SCONTROL = 'if [ "$1" = show ]; then printf "n1\\nn2\\n"; else echo "$@" > requeued; fi'
OF_THE_TUTORIAL = {"srun": SRUN, "scancel": 'echo "$@" > signalled', "scontrol": SCONTROL}
ARGUMENTS = ("--env=a b", "--train_dir=100%", "--experiment=e")


def job(tmp_path: Path) -> Job:
    return Job("e", tmp_path / "100%", ARGUMENTS, {"A": "it's"})


def lines(tmp_path: Path, **flags: object) -> list[str]:
    batch = Batch(dataclasses.replace(CONFIG, **flags), tmp_path)  # type: ignore[arg-type]
    (path,) = batch.write_scripts([job(tmp_path)])
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    return path.read_text().splitlines()


def test_script_requests_resources_and_starts_the_run(tmp_path: Path) -> None:
    script = lines(tmp_path, slurm_gpus_per_job=2, slurm_cpus_per_gpu=4, slurm_partition="gpu,long")

    assert script == [
        "#!/bin/bash",
        "#SBATCH --job-name=e",
        f'#SBATCH --output="{tmp_path}/100%%/e.log"',
        "#SBATCH --open-mode=append",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --gres=gpu:2",
        "#SBATCH --partition=gpu,long",
        "#SBATCH --requeue",
        "",
        "export A='it'\"'\"'s'",
        f"cd {shlex.quote(str(Path.cwd()))}",
        shlex.join(["srun", *job(tmp_path).command]),
    ]
    assert (tmp_path / "100%").is_dir()


def test_without_gpus_and_with_a_timeout(tmp_path: Path) -> None:
    script = lines(tmp_path, slurm_gpus_per_job=0, slurm_cpus_per_gpu=3, slurm_timeout=3600)

    assert script[5:7] == ["#SBATCH --cpus-per-task=3", "#SBATCH --requeue"]
    assert script[-4].startswith("srun timeout --foreground --kill-after=160 3600 ")
    assert script[-3:] == [
        "code=$?",
        'if [ $code -eq 124 ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        "exit $code",  # a failed run must not count as completed
    ]


def test_template_adds_its_own_lines(tmp_path: Path) -> None:
    template = tmp_path / "template.sh"
    template.write_text("#!/bin/sh\n#SBATCH --mem=4G\nmodule load cuda\n{{ CMD }}\necho {{NAME}} {{ GPU }} {{ CPU }}\n")

    script = lines(tmp_path, slurm_sbatch_template=str(template))

    assert script[0] == "#!/bin/bash"
    command = shlex.join(["srun", *job(tmp_path).command])
    assert script[8:] == ["#SBATCH --mem=4G", "", "export A='it'\"'\"'s'", "module load cuda", command, "echo e 1 14"]


def test_all_problems_of_slurm_flags_are_reported(tmp_path: Path) -> None:
    template = tmp_path / "template.sh"
    template.write_text("echo {{ COLOUR }}")
    wrong = dataclasses.replace(
        CONFIG, slurm_print_only=False, slurm_workdir="a\nb", slurm_sbatch_template=str(template)
    )

    with pytest.raises(ConfigError) as caught:
        Batch(wrong, tmp_path)

    words = ("{{ COLOUR }} is unknown", "has no {{ CMD }}", "a path in a batch script", "there is no sbatch")
    assert len(caught.value.problems) == len(words)
    assert all(word in problem for word, problem in zip(words, caught.value.problems, strict=True))


def test_the_script_of_the_tutorial_has_ranks_save_and_queues_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ROOT / "docs" / "examples" / "ranks.sbatch"
    for name, body in OF_THE_TUTORIAL.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    for name, value in (("JOB_ID", 17), ("JOB_NODELIST", "n[1-2]"), ("JOB_NUM_NODES", 2), ("GPUS_ON_NODE", 4)):
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "48")

    with subprocess.Popen(["bash", script]) as job:
        while not (tmp_path / "started").exists():
            assert job.poll() is None
            time.sleep(0.01)
        job.terminate()
        assert job.wait(60) != 0

    assert "--rdzv-endpoint=n1:29500" in (tmp_path / "started").read_text()
    calls = [(tmp_path / name).read_text() for name in ("signalled", "srun_ends", "requeued")]
    assert calls == ["--signal=TERM 17.0\n", "saved\n", "requeue 17\n"]
    assert script.read_text() in documents()["docs/tutorials/several_machines.md"]
