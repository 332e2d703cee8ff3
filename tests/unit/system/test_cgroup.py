"""The limits of a container are those of its control group and of all above it, in either version of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.system.cores import cpu_quota, memory_left
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
    assert cpu_quota(write_files(tmp_path, files), tmp_path / "no membership file") == quota


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

    assert cpu_quota(root, membership) == 3.0


def test_the_first_version_of_cgroups_names_the_controller_of_the_group(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/elsewhere\n2:cpu,cpuacct:/batch/job\n0::/\n")
    files = {"cpu/batch/job/cpu.cfs_quota_us": "250000\n", "cpu/batch/job/cpu.cfs_period_us": "100000\n"}

    assert cpu_quota(write_files(tmp_path / "v1", files), membership) == 2.5


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        ({"memory.max": "max\n", "memory.current": "5\n"}, None),
        ({"memory.max": "100\n", "memory.current": "30\n"}, 70),
        ({"memory.max": "100\n", "memory.current": "130\n"}, 0),
        ({"memory/memory.limit_in_bytes": "50\n", "memory/memory.usage_in_bytes": "20\n"}, 30),
    ],
)
def test_the_memory_that_is_left_is_read_from_either_version_of_cgroups(
    tmp_path: Path, files: dict[str, str], left: int | None
) -> None:
    assert memory_left(write_files(tmp_path, files), tmp_path / "no membership file") == left


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used", "cache"),
    [
        ("0::/user.slice/run.scope\n", "", "memory.max", "memory.current", "inactive_file"),
        (
            *("4:memory:/user.slice/run.scope\n", "memory/", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_inactive_file",
        ),
    ],
    ids=["v2", "v1"],
)
def test_the_limit_of_memory_is_the_least_of_the_own_group_and_its_ancestors_and_files_make_way(
    tmp_path: Path, line: str, folder: str, limit: str, used: str, cache: str
) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text(line)
    files = {
        f"{folder}user.slice/run.scope/{limit}": "1000\n",
        f"{folder}user.slice/run.scope/{used}": "300\n",
        f"{folder}user.slice/run.scope/memory.stat": f"anon 200\n{cache} 90\n",
        f"{folder}user.slice/{limit}": "900\n",
        f"{folder}user.slice/{used}": "400\n",
    }

    assert memory_left(write_files(tmp_path / "group", files), membership) == 500

    files[f"{folder}user.slice/run.scope/{limit}"] = "700\n"
    assert memory_left(write_files(tmp_path / "smaller", files), membership) == 700 - (300 - 90)
