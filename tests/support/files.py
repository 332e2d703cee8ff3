"""Writes small trees of files, reads rows, and damages files as disks and kills do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write each text under its name below ``root``, which is returned."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def json_rows(path: Path) -> list[dict[str, Any]]:
    """One of each whole line, as the last one may be written just now; none if there is no file."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


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
