"""A run needs little, or says before it starts what it needs and what it has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from sfactory.system.resources import handles_needed
from tests.support.files import write_files
from tests.support.process_states import wait_until_all_work
from tests.support.trainer import ENDLESS, RunTrainer, TrainerRun, saved_env_steps

STEPS = 5_000
CHILDREN = 4  # a learner, a policy worker and two actors
MIB = 2**20


def command(program: str, *arguments: str) -> tuple[str, ...]:
    """A command that limits what a run may have, and then becomes it."""
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    return program, *arguments


def open_files(soft: int, hard: int) -> tuple[str, ...]:
    return command("prlimit", f"--nofile={soft}:{hard}")


def mounted(mount: str) -> tuple[str, ...]:
    """In a namespace of its own, where an unprivileged user may mount; skips the test where that is forbidden."""
    words = command("unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh")
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine forbids mounts in a namespace")
    return words


def container(folder: Path, **files: str) -> str:
    """The mount of these files as the kernel's of the control group of the run."""
    cgroup = write_files(folder / "groups", {name.replace("_", "."): f"{text}\n" for name, text in files.items()})
    return f"mount --bind '{cgroup}' /sys/fs/cgroup"


def assert_refused(run: TrainerRun, *words: str) -> None:
    run.assert_ended(ExitCode.REFUSED)
    for word in words:
        assert word in run.stderr, run.report(f"does not say {word}")
    assert "Traceback" not in run.stderr, run.report("a traceback")
    assert not list(run.run_dir.glob("checkpoint_p0/*")), "something was started"


def files_open(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def soft_limit(pid: int) -> int:
    (line,) = re.findall(r"^Max open files +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    return int(line)


@pytest.mark.long
def test_too_few_open_files_are_refused_with_need_and_have(run_trainer: RunTrainer) -> None:
    run = run_trainer(open_files(64, 64), train_for_env_steps=STEPS)

    assert_refused(run, f"needs {handles_needed(CHILDREN)} open files, and 64 are allowed", "ulimit -Hn")


@pytest.mark.long
def test_low_soft_limit_of_open_files_is_raised_to_the_planned_number_which_is_enough(run_trainer: RunTrainer) -> None:
    many = {"num_workers": 8, "num_envs_per_worker": 2, "rollout": 32}
    planned = handles_needed(8 + 2)
    run = run_trainer(open_files(40, planned), train_for_env_steps=ENDLESS, **many)
    wait_until_all_work(run)

    found = run.processes()
    assert {name: soft_limit(pid) for name, pid in found.items()} == dict.fromkeys(found, planned)
    assert len(found) == 8 + 2 + 1
    assert max(files_open(pid) for pid in found.values()) <= planned
    run.stop()


@pytest.mark.long
def test_run_on_one_core_warns(run_trainer: RunTrainer) -> None:
    core = min(os.sched_getaffinity(0))
    run = run_trainer(command("taskset", "-c", str(core)), train_for_env_steps=STEPS).done()

    assert f"this run has one core (affinity mask: {core}; quota: " in run.stderr
    assert run.stderr.count("take turns") == 1


@pytest.mark.long
def test_container_with_half_a_core_and_little_dev_shm_is_enough_and_no_process_is_pinned(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    small = mounted(f"{container(tmp_path, cpu_max='50000 100000')} && mount -t tmpfs -o size=1m sf-test /dev/shm")
    # Slots of 4 MiB in all.
    run = run_trainer(small, train_for_env_steps=ENDLESS, num_workers=1, min_traj_buffers_per_worker=400)
    wait_until_all_work(run)

    all_cores = os.sched_getaffinity(0)
    assert {os.sched_getaffinity(pid) == all_cores for pid in run.processes().values()} == {True}
    assert "quota: 0.5 cores" in run.stderr
    run.stop()


@pytest.mark.long
def test_memory_of_a_container_is_respected(run_trainer: RunTrainer, tmp_path: Path) -> None:
    full = container(tmp_path, memory_max=f"{512 * MIB}", memory_current=f"{112 * MIB}", cpu_max="max 1")
    run = run_trainer(mounted(full), train_for_env_steps=STEPS, num_workers=16)

    # A learner and 17 other processes.
    assert_refused(run, f"processes {130 + 17 * 17}), and 400 MiB are free; lower --num_workers")


def test_container_too_small_for_the_imports_of_main_is_refused_before_any_process_starts(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    full = container(tmp_path, memory_max=f"{512 * MIB}", memory_current=f"{300 * MIB}", cpu_max="max 1")
    run = run_trainer(mounted(full), train_for_env_steps=STEPS)

    assert_refused(run, "needs 310 MiB of memory before it can start a process, and 212 MiB are free")
    assert not run.run_dir.exists()


@pytest.mark.long
def test_run_works_without_standard_streams(run_trainer: RunTrainer) -> None:
    closed = command("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    run = run_trainer(closed, train_for_env_steps=STEPS)

    assert run.wait() == ExitCode.DONE
    assert saved_env_steps(run.run_dir) >= STEPS
    assert json.loads((run.run_dir / "summary.json").read_text())["status"] == "done"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("TMPDIR={long} exec", "set a shorter one: TMPDIR=/tmp"),
        ("mkdir {gone} && cd {gone} && rmdir {gone} && exec", "the current directory no longer exists"),
    ],
)
def test_unusable_folders_are_refused_by_name(run_trainer: RunTrainer, tmp_path: Path, script: str, words: str) -> None:
    long_path = tmp_path / ("x" * 120)
    long_path.mkdir()
    there = script.format(long=long_path, gone=tmp_path / "gone")
    run = run_trainer(command("sh", "-c", f'{there} "$@"', "sh"))

    assert_refused(run, words)
