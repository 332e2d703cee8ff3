"""The cores a run may use are those of its mask, or fewer under a container's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sfactory.cores import Cores, cgroup_quota
from tests.support.files import write_files


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, None),
    ],
)
def test_the_quota_is_read_from_either_version_of_cgroups(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    assert cgroup_quota(write_files(tmp_path, files), tmp_path / "no membership file") == quota


def test_the_least_quota_of_the_own_group_and_its_ancestors_holds(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/user.slice/run.scope\n")
    root = write_files(
        tmp_path / "v2",
        {
            "user.slice/cpu.max": "300000 100000\n",
            "user.slice/run.scope/cpu.max": "max 100000\n",
            "other.slice/cpu.max": "100000 100000\n",
        },
    )

    assert cgroup_quota(root, membership) == 3.0


def test_the_first_version_of_cgroups_names_the_controller_of_the_group(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/elsewhere\n2:cpu,cpuacct:/batch/job\n0::/\n")
    files = {"cpu/batch/job/cpu.cfs_quota_us": "250000\n", "cpu/batch/job/cpu.cfs_period_us": "100000\n"}

    assert cgroup_quota(write_files(tmp_path / "v1", files), membership) == 2.5


@pytest.mark.parametrize(("quota", "count"), [(None, 4), (0.5, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
def test_a_quota_below_the_mask_lowers_the_count(quota: float | None, count: int) -> None:
    assert Cores((0, 1, 2, 5), quota).count == count


def test_actors_are_pinned_to_the_masks_own_cores() -> None:
    cores = Cores((2, 3, 7), None)

    assert [cores.cores_of_actor(actor, 3) for actor in range(3)] == [frozenset({core}) for core in (2, 3, 7)]


def test_nobody_is_pinned_where_actors_outnumber_cores_or_there_is_a_quota() -> None:
    assert Cores((2, 3), None).cores_of_actor(0, num_actors=3) is None
    assert Cores((2, 3), 1.5).cores_of_actor(0, num_actors=1) is None


@pytest.mark.parametrize(
    ("quota", "actors", "due"),
    [
        (None, 2, [{5}, {7}]),
        (None, 1, [{5}]),
        (None, 3, [{5, 7}] * 3),  # more actors than cores are left to them: all on those
        (3.0, 2, [{5, 7}] * 2),
    ],
)
def test_cores_that_are_kept_for_the_learner_are_no_actors(
    quota: float | None, actors: int, due: list[set[int]]
) -> None:
    cores = Cores((1, 3, 5, 7), quota).keeping(2)

    assert [set(cores.cores_of_actor(actor, actors) or ()) for actor in range(actors)] == due
    assert cores.learner_threads(actors) >= 2


@pytest.mark.parametrize(("actors", "threads"), [(1, 7), (6, 2), (7, 1), (8, 1), (100, 1)])
def test_the_learner_gets_the_cores_that_actors_leave_over(actors: int, threads: int) -> None:
    assert Cores(tuple(range(8)), None).learner_threads(actors) == threads


def test_the_present_mask_is_used() -> None:
    assert Cores.available().ids == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize(("cores", "wanted", "starting"), [(2, 0, 8), (16, 0, 32), (16, 1, 1), (2, 100, 100)])
def test_actors_start_in_twice_the_cores_or_as_many_as_are_wanted(cores: int, wanted: int, starting: int) -> None:
    assert Cores(tuple(range(cores)), None).actors_starting(wanted) == starting
