"""Hooks that fill a learner's disk or stop it within a save, when a file in FOLDER says so."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

from sfactory.learner.hooks import LearnerFacts

FOLDER = "SFACTORY_TEST_DISK"
FULL = "full"  # as long as it is there, no file of this process grows beyond LARGEST bytes
STOP = "stop"  # once it is there, the next checkpoint is written and stays without its name
STOPPED = "stopped"  # holds which one

LARGEST = 500_000
_ENDLESS = resource.RLIM_INFINITY


def _folder() -> Path:
    return Path(os.environ[FOLDER])


def fill_disk(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """A disk is full as long as there is the file FULL: writing fails with OSError, as it does there."""
    limit = LARGEST if (_folder() / FULL).exists() else _ENDLESS
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, _ENDLESS))


def stop_before_naming(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """Once there is the file STOP, a learner stands still between writing a checkpoint and naming it."""
    if (_folder() / STOP).exists() and os.replace is not _stand_still:
        os.replace = _stand_still  # type: ignore[assignment]  # as much of it as is called


_replace = os.replace


def _stand_still(source: Path, target: Path) -> None:
    if Path(target).suffix == ".pth":
        (_folder() / STOPPED).write_text(f"{source}\n{target}")
        time.sleep(600)
    _replace(source, target)
