"""A run does with little, or says before it starts what it needs and what there is."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from sfactory.system.resources import handles_needed
from tests.support import limits
from tests.support.files import write_files
from tests.support.long import long
from tests.support.process_states import wait_until_all_work
from tests.support.trainer import RunTrainer, TrainerRun

pytestmark = pytest.mark.faults

STEPS = 5_000
CHILDREN = 4  # a learner, a policy worker and two actors


def assert_done(run: TrainerRun) -> None:
    run.assert_ended(ExitCode.DONE, 120)
    assert run.result()["env_steps"] >= STEPS


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


# 64 MiB is what a container has; the other holds nothing that a run might put there.
@pytest.mark.parametrize("megabytes", [1, long(64)])
def test_a_run_needs_no_room_in_shared_memory_of_that_name(run_trainer: RunTrainer, megabytes: int) -> None:
    # Slots of 8 MiB in all, more than the smaller one.
    run = run_trainer(limits.small_shm(megabytes), train_for_env_steps=STEPS, min_traj_buffers_per_worker=400)

    assert_done(run)


def test_too_few_open_files_are_refused_with_need_and_have(run_trainer: RunTrainer) -> None:
    run = run_trainer(limits.open_files(64, 64), train_for_env_steps=STEPS)

    need = handles_needed(CHILDREN)
    assert_refused(run, f"needs {need} open files, and 64 are allowed", "ulimit -Hn")


@pytest.mark.long
def test_a_low_soft_limit_of_open_files_is_raised_for_all_processes_and_what_is_planned_suffices(
    run_trainer: RunTrainer,
) -> None:
    hard = handles_needed(CHILDREN)
    run = run_trainer(limits.open_files(40, hard), train_for_env_steps=1_000_000_000)
    wait_until_all_work(run)

    found = run.processes()
    assert {name: soft_limit(pid) for name, pid in found.items()} == dict.fromkeys(found, hard)
    assert len(found) == CHILDREN + 1
    assert max(files_open(pid) for pid in found.values()) < hard

    run.signal_main(signal.SIGTERM)
    run.assert_ended(ExitCode.SIGTERM)


def test_each_child_takes_no_more_open_files_than_are_planned_for_it(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=1_000_000_000, num_workers=12, num_envs_per_worker=2, rollout=32)
    wait_until_all_work(run)

    open_files = files_open(run.pid_of("sf-main"))

    assert open_files <= handles_needed(12 + 2)
    run.signal_main(signal.SIGTERM)
    run.assert_ended(ExitCode.SIGTERM)


def test_run_on_one_core_warns_and_pins_no_process(run_trainer: RunTrainer) -> None:
    core = min(os.sched_getaffinity(0))
    run = run_trainer(limits.one_core(core), train_for_env_steps=STEPS)

    assert_done(run)
    assert f"this run has one core (affinity mask: {core}; quota: " in run.stderr
    assert run.stderr.count("take turns") == 1


def test_half_a_core_of_a_container_is_respected_and_no_process_is_pinned(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    groups = write_files(tmp_path / "groups", {"cpu.max": "50000 100000\n"})
    run = run_trainer(limits.container(groups), train_for_env_steps=1_000_000_000, num_workers=1)
    wait_until_all_work(run)

    all_cores = os.sched_getaffinity(0)
    assert {os.sched_getaffinity(pid) == all_cores for pid in run.processes().values()} == {True}
    assert "quota: 0.5 cores" in run.stderr
    run.signal_main(signal.SIGTERM)
    run.assert_ended(ExitCode.SIGTERM)


def test_the_memory_of_a_container_is_respected(run_trainer: RunTrainer, tmp_path: Path) -> None:
    mib = 2**20
    groups = write_files(
        tmp_path / "groups", {"memory.max": f"{512 * mib}\n", "memory.current": f"{500 * mib}\n", "cpu.max": "max 1\n"}
    )
    run = run_trainer(limits.container(groups), train_for_env_steps=STEPS, rollout=1024, batch_size=524_288)

    assert_refused(run, "MiB of memory, and 12 MiB are free; lower --num_workers")
