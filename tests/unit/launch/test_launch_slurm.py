"""Batch scripts request resources and start the run."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from sfactory.config.launcher import LauncherConfig
from sfactory.errors import ConfigError, SFactoryError
from sfactory.launch.jobs import Job
from sfactory.launch.launch import launch
from sfactory.launch.run_slurm import Batch
from sfactory.process.signals import Interrupts
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
# Texts that a shell, or a loop over lines, might take for something else.
STRANGE = ("a\n#SBATCH --mem=1\n#!b\u2028c\x0cd\re", "'\"$(false) `false` \\ {{ NAME }}", "")
ARGUMENTS = ("--env=a b", "--train_dir=100%", "--experiment=e")


def job(tmp_path: Path, arguments: tuple[str, ...] = ARGUMENTS) -> Job:
    return Job("e", tmp_path / "100%", arguments, {"A": "it's"})


def lines(tmp_path: Path, arguments: tuple[str, ...] = ARGUMENTS, **flags: object) -> list[str]:
    batch = Batch(dataclasses.replace(CONFIG, **flags), tmp_path)  # type: ignore[arg-type]
    (path,) = batch.write_scripts([job(tmp_path, arguments)])
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
        "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-8}",
        "export A='it'\"'\"'s'",
        f"cd {shlex.quote(str(Path.cwd()))}",
        shlex.join(["srun", *job(tmp_path).command]),
    ]
    assert (tmp_path / "100%").is_dir()


def test_without_gpus_and_with_a_timeout(tmp_path: Path) -> None:
    script = lines(tmp_path, slurm_gpus_per_job=0, slurm_cpus_per_gpu=3, slurm_timeout=3600)

    assert script[5:7] == ["#SBATCH --cpus-per-task=3", "#SBATCH --requeue"]
    assert script[-1].startswith("bash -c 'srun timeout --foreground --kill-after=160 3600 ")


OF_A_JOB = {
    "srun": 'echo "$SRUN_CPUS_PER_TASK" >> cores; printf "%s\\0" "$@" > words; exit $ENDS_WITH',
    "scontrol": 'echo "$@" >> requeued',
}


def programs(folder: Path, bodies: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts stand-ins for Slurm's programs first on the path, and makes ``folder`` the current directory."""
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SLURM_JOB_ID", "17")


@pytest.mark.parametrize(
    "template",
    ["{{ CMD }}", "set -eu\n{{ CMD }}\necho after", "set -euo pipefail\n{{ CMD }} | cat", "exec nice {{ CMD }}"],
)
@pytest.mark.parametrize(("ends_with", "requeued"), [(124, "requeue 17\n"), (70, ""), (0, "")])
def test_run_whose_time_is_over_is_queued_again_by_any_template(
    template: str, ends_with: int, requeued: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, OF_A_JOB, monkeypatch)
    monkeypatch.setenv("ENDS_WITH", str(ends_with))
    (tmp_path / "template").write_text(template)
    lines(tmp_path, STRANGE, slurm_sbatch_template="template", slurm_timeout=3600)

    code = subprocess.run(["bash", tmp_path / "slurm" / "e.sh"], check=False).returncode

    words = (tmp_path / "words").read_bytes().decode().split("\0")
    assert words[-4:] == [*STRANGE, ""]
    (tmp_path / "requeued").touch()
    assert (code, (tmp_path / "requeued").read_text()) == (ends_with, requeued)


def test_run_has_all_cores_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, OF_A_JOB, monkeypatch)
    monkeypatch.setenv("ENDS_WITH", "0")
    lines(tmp_path, slurm_gpus_per_job=0, slurm_cpus_per_gpu=6)

    for cores in ("6", "12"):  # a template may ask for others
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", cores)
        subprocess.run(["bash", tmp_path / "slurm" / "e.sh"], check=True)

    assert (tmp_path / "cores").read_text() == "6\n12\n"


QUEUE = {
    "sbatch": 'test "$FULL" && echo "the queue is full" >&2 && exit 1; echo "$2" >> submitted; wc -l < submitted',
    "squeue": 'test "$DOWN" && exit 1; cat queue',
}
SEARCH = """
[[experiments]]
base_name = "run"
cmd = "--env=sfactory_envs.synthetic.bandit:Bandit"
grid = {seed = [1, 2, 3]}
"""


def submit(**flags: object) -> list[tuple[str, str | None]]:
    """Calls the launcher; the status and the job of each run."""
    config = LauncherConfig(run="many.toml", backend="slurm", train_dir=".")
    interrupts = Interrupts()
    line, _ = launch(dataclasses.replace(config, **flags), "", interrupts)  # type: ignore[arg-type]
    interrupts.restore()
    return [(run["status"], run["job"]) for run in json.loads(line)["runs"]]


def test_run_that_is_in_the_queue_is_not_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    programs(tmp_path, QUEUE, monkeypatch)
    (tmp_path / "many.toml").write_text(SEARCH)
    monkeypatch.setenv("FULL", "yes")
    with pytest.raises(SFactoryError, match="the queue is full"):
        submit()
    monkeypatch.setenv("FULL", "")
    all_of_them = [("waiting", "1"), ("waiting", "2"), ("waiting", "3")]

    assert submit() == all_of_them
    (tmp_path / "queue").write_text("1\n2\n3\n40\n")
    assert submit() == all_of_them
    assert submit(slurm_gpus_per_job=2) == all_of_them  # other resources, which these jobs do not have
    (tmp_path / "queue").write_text("1\n3\n")  # the second one has ended, and is not done
    assert submit() == [("waiting", "1"), ("waiting", "4"), ("waiting", "3")]

    said = capfd.readouterr().err
    assert said.count("3 runs are in Slurm's queue already") == 2
    assert said.count("run_seed_1, run_seed_2, run_seed_3: other") == 1
    assert "scancel 1 2 3" in said
    monkeypatch.setenv("DOWN", "yes")
    with pytest.raises(SFactoryError, match="squeue"):
        submit()
    assert len((tmp_path / "submitted").read_text().splitlines()) == 4


def test_template_adds_its_own_lines(tmp_path: Path) -> None:
    template = tmp_path / "template.sh"
    template.write_text("#!/bin/sh\n#SBATCH --mem=4G\nmodule load cuda\n{{ CMD }}\necho {{NAME}} {{ GPU }} {{ CPU }}\n")

    script = lines(tmp_path, slurm_sbatch_template=str(template))

    assert script[0] == "#!/bin/bash"
    command = shlex.join(["srun", *job(tmp_path).command])
    assert script[8:10] == ["#SBATCH --mem=4G", ""]
    assert script[11:] == ["export A='it'\"'\"'s'", "module load cuda", command, "echo e 1 14"]


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
    programs(tmp_path, OF_THE_TUTORIAL, monkeypatch)
    for name, value in (("JOB_NODELIST", "n[1-2]"), ("JOB_NUM_NODES", 2), ("GPUS_ON_NODE", 4)):
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
