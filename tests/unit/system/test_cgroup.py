"""Limits of CPU and memory are read from the own control group and its ancestors, in both cgroup versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.system.cores import cpu_quota, memory_left
from tests.support.files import write_files

OWN = "user.slice/run.scope"
V1 = "4:memory:/user.slice/run.scope\n2:cpu,cpuacct:/user.slice/run.scope\n0::/\n"
V2 = "0::/user.slice/run.scope\n"


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("", {}, None),
        ("", {"cpu.max": "max 100000\n"}, None),
        ("", {"cpu.max": "150000 100000\n"}, 1.5),
        ("", {"cpu.max": "nonsense"}, None),
        ("", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("", {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ("", {"cpu/cpu.cfs_quota_us": "400000\n"}, None),
        (V1, {f"cpu/{OWN}/cpu.cfs_quota_us": "250000\n", f"cpu/{OWN}/cpu.cfs_period_us": "100000\n"}, 2.5),
        (
            V2,
            {
                "user.slice/cpu.max": "300000 100000\n",
                f"{OWN}/cpu.max": "max 100000\n",
                "other.slice/cpu.max": "100000 100000\n",
            },
            3.0,
        ),
    ],
)
def test_smallest_cpu_quota_of_the_own_group_and_its_ancestors_counts(
    tmp_path: Path, membership: str, files: dict[str, str], quota: float | None
) -> None:
    if membership:
        (tmp_path / "membership").write_text(membership)

    assert cpu_quota(write_files(tmp_path / "root", files), tmp_path / "membership") == quota


@pytest.mark.parametrize(
    ("membership", "folder", "names"),
    [
        (V2, "", ("memory.max", "memory.current", "inactive_file")),
        (V1, "memory/", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
    ids=["v2", "v1"],
)
def test_smallest_memory_limit_counts_and_inactive_page_cache_is_free(
    tmp_path: Path, membership: str, folder: str, names: tuple[str, str, str]
) -> None:
    limit, used, cache = names
    (tmp_path / "membership").write_text(membership)
    files = {
        f"{folder}{OWN}/{limit}": "1000\n",
        f"{folder}{OWN}/{used}": "300\n",
        f"{folder}{OWN}/memory.stat": f"anon 200\n{cache} 90\n",
        f"{folder}user.slice/{limit}": "900\n",
        f"{folder}user.slice/{used}": "400\n",
    }

    assert memory_left(write_files(tmp_path / "group", files), tmp_path / "membership") == 500

    files[f"{folder}{OWN}/{limit}"] = "700\n"
    assert memory_left(write_files(tmp_path / "smaller", files), tmp_path / "membership") == 700 - (300 - 90)

    files[f"{folder}user.slice/{used}"] = "1000\n"
    assert memory_left(write_files(tmp_path / "full", files), tmp_path / "membership") == 0
    files = {f"{folder}{OWN}/{limit}": "max\n", f"{folder}{OWN}/{used}": "5\n"}
    assert memory_left(write_files(tmp_path / "unlimited", files), tmp_path / "membership") is None
