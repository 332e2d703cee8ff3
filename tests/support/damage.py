"""Damages files as disks and kills do."""

from __future__ import annotations

import os
from pathlib import Path


def truncate(path: Path) -> None:
    """Cut its last 100 bytes off."""
    os.truncate(path, path.stat().st_size - 100)


def flip_a_bit(path: Path) -> None:
    """Turn one bit in its middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    """Leave nothing in it."""
    os.truncate(path, 0)
