"""Writes small trees of files, and damages files as disks and kills do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write each text under its name below ``root``, which is returned."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


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
