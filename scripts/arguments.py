"""Room: what scripts take on their command lines. In: words. Out: folders, and the flags that are meant for a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def folder(text: str) -> Path:
    """The path, from wherever, of a folder that is there."""
    path = Path(text).absolute()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is meant for a script, and the flags of a run, which stand behind ``--``."""
    own = list(arguments)
    if "--" not in own:
        return own, []
    at = own.index("--")
    return own[:at], own[at + 1 :]
