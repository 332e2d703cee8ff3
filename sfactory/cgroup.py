"""Room: limits of the container. In: the kernel's files about control groups. Out: numbers, or None without a limit.

Both versions of control groups are read. A limit holds for everything below it, so a group's own and those of its
ancestors are looked at. Inside a container its own group may be all there is to see, and then is the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeVar

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

N = TypeVar("N", int, float)


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """CPUs' worth of time this process may use: the least of all limits."""
    return _least(_readings(root, membership, "cpu", _quota_v2, _quota_v1))


def memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that this process and its children can still allocate: the least that any limit leaves."""
    return _least(_readings(root, membership, "memory", _memory_v2, _memory_v1))


def _readings(
    root: Path,
    membership: Path,
    controller: str,
    v2: Callable[[Path], N | None],
    v1: Callable[[Path], N | None],
) -> Iterator[N | None]:
    yield from (v2(folder) for folder in _folders(root, _own_group(membership, "")))
    yield from (v1(folder) for folder in _folders(root / controller, _own_group(membership, controller)))


def _folders(base: Path, group: PurePosixPath) -> Iterator[Path]:
    """Those of a group and of its ancestors."""
    for path in (group, *group.parents):
        yield base / path.relative_to("/")


def _own_group(membership: Path, controller: str) -> PurePosixPath:
    """Path of this process's group: lines are ``id:controllers:path``; the second version names no controllers."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return PurePosixPath("/")
    paths = [path for _, controllers, path in lines if controller in controllers.split(",")]
    return PurePosixPath(paths[0] if paths else "/")


def _least(readings: Iterator[N | None]) -> N | None:
    return min((reading for reading in readings if reading is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else float(quota) / float(period)


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _memory_v2(folder: Path) -> int | None:
    return _memory(folder, "memory.max", "memory.current", "inactive_file")


def _memory_v1(folder: Path) -> int | None:
    return _memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _memory(folder: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    limit, used = _number(folder / limit_name), _number(folder / used_name)
    if limit is None or used is None:
        return None
    # Files that were read or written once count as used, and make way for whoever needs memory.
    return max(0, limit - max(0, used - _field(folder / "memory.stat", cache_name)))


def _field(path: Path, name: str) -> int:
    try:
        fields = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(field[1]) for field in fields if len(field) == 2 and field[0] == name), 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
