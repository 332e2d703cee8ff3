"""Tells whether a process is stopped."""

from __future__ import annotations

from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Whether the process lives, and all its threads are stopped: some may be sooner than others."""
    lines = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(lines) and all(line.rpartition(")")[2].split()[0] == "T" for line in lines)
