"""Moves an earlier run of the same name out of the way of a new one.

NOTE [Nothing is deleted]: only a run that an earlier overwrite moved is ever removed, file by file, and only if its
folder holds nothing but files that sfactory wrote for a run of this name. A folder with anything else in it, a run that
was resumed under its new name, or one in use stays, and the new folder gets another number.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from sfactory.checkpoint import MILESTONES, is_checkpoint
from sfactory.config.saved_config import CONFIG_NAME
from sfactory.errors import RunDirError
from sfactory.experiment.run_dir import LOCK_NAME, RunDir

_CHECKPOINTS = re.compile(r"checkpoint_p\d+")
_UNFINISHED = re.compile(r"\.tmp-\d+-[0-9a-f]{12}")
_WRITTEN = re.compile(
    r"config\.json|run\.json|run\.json\.unreadable|metrics\.jsonl|summary\.json|sf_log[^/]*\.txt"
    r"|population\.jsonl?|population\.(svg|png)|git(_[0-9a-f]{16})?\.diff|events\.out\.tfevents\.[^/]+"
)

_log = logging.getLogger(__name__)


def archive_run(rundir: RunDir, behavior: Literal["restart", "overwrite"]) -> Path | None:
    """Give ``rundir`` a new, empty folder; returns where the old one is now, None if it was empty.

    Raises RunDirError if it cannot be moved.
    """
    if all(entry.name == LOCK_NAME for entry in rundir.path.iterdir()):
        return None
    target = _next_old(rundir.path) if behavior == "restart" else _cleared_for(rundir.path)
    rundir.move_to(target)
    _log.info("the earlier run %s is now %s", rundir.path, target)
    return target


def _next_old(path: Path) -> Path:
    """NAME_old0001, or the first number that is free."""
    return next(folder for folder in _numbered(path, "old") if not os.path.lexists(folder))


def _cleared_for(path: Path) -> Path:
    """NAME_overwritten, or the first name with a number that is free or can be freed."""
    for folder in itertools.chain([path.with_name(f"{path.name}_overwritten")], _numbered(path, "overwritten")):
        if not os.path.lexists(folder):
            return folder
        reason = _cleared(folder, path.name)
        if reason is None:
            return folder
        _log.warning("%s is kept: %s", folder, reason)
    raise AssertionError("there is always another number")


def _numbered(path: Path, word: str) -> Iterator[Path]:
    """NAME_word0001 and so on, endlessly."""
    return (path.with_name(f"{path.name}_{word}{number:04d}") for number in itertools.count(1))


def _cleared(folder: Path, experiment: str) -> str | None:
    """Remove the run that an earlier overwrite moved to ``folder``; returns the reason if it has to stay.

    See NOTE [Nothing is deleted].
    """
    if not _is(folder, stat.S_ISDIR):
        return "it is not a folder"
    try:
        if not _was_run_of(folder, experiment):
            return f"it does not hold an earlier run of {experiment!r}"
        with RunDir.open(folder.parent, folder.name):
            files, folders = _content(folder)
            foreign = next((entry for entry in (*files, *folders) if not _written_here(entry, folder)), None)
            if foreign is not None:
                return f"{foreign} is not sfactory's"
            # The files that identify the run go last, so that an interrupted removal can be continued.
            for file in sorted(files, key=lambda entry: (entry.name == LOCK_NAME, entry.name == CONFIG_NAME)):
                file.unlink()
            for inner in sorted(folders, reverse=True):
                inner.rmdir()
            folder.rmdir()
    except RunDirError as error:
        return str(error)
    except OSError as error:
        return f"it could not be removed: {error}"
    return None


def _was_run_of(folder: Path, experiment: str) -> bool:
    """Whether the run in ``folder`` was last trained under that name, or only its lock is left."""
    try:
        return bool(json.loads((folder / CONFIG_NAME).read_bytes())["config"]["experiment"] == experiment)
    except FileNotFoundError:
        return all(entry.name == LOCK_NAME for entry in folder.iterdir())
    except (ValueError, KeyError, TypeError):
        return False


def _content(folder: Path) -> tuple[list[Path], list[Path]]:
    """All files and links below ``folder``, and all folders; links are not followed."""
    files: list[Path] = []
    folders: list[Path] = []
    for where, inner, names in os.walk(folder):
        files += [Path(where, name) for name in names]
        folders += [Path(where, name) for name in inner]
    return files, folders


def _written_here(entry: Path, folder: Path) -> bool:
    """Whether ``entry``, anywhere below ``folder``, is a file or folder that a run writes there."""
    *parents, name = entry.relative_to(folder).parts
    if _is(entry, stat.S_ISDIR):
        return _holds_checkpoints([*parents, name])
    if not _is(entry, stat.S_ISREG):
        return False
    if parents:
        return _holds_checkpoints(parents) and (is_checkpoint(name) or _UNFINISHED.fullmatch(name) is not None)
    return name == LOCK_NAME or any(pattern.fullmatch(name) for pattern in (_WRITTEN, _UNFINISHED))


def _holds_checkpoints(parts: list[str]) -> bool:
    return _CHECKPOINTS.fullmatch(parts[0]) is not None and parts[1:] in ([], [MILESTONES])


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.lstat().st_mode)
    except FileNotFoundError:
        return False
