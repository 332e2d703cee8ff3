"""Moves an earlier run of the same name out of the way of a new one.

NOTE [Nothing is deleted]: only a run that an earlier overwrite moved is ever removed, file by file, and only if its
folder holds nothing but files that sfactory wrote for a run of this name. A folder with anything else in it, a run that
was resumed under its new name, or one in use stays, and the new folder gets another number.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import stat
from pathlib import Path
from typing import Literal

from sfactory import atomic
from sfactory.checkpoint.directory import MILESTONES, is_checkpoint
from sfactory.config.saved_config import CONFIG_NAME, METRICS_NAME, RUN_NAME, SUMMARY_NAME, VIDEOS_NAME
from sfactory.errors import RunDirError
from sfactory.experiment.run_dir import LOCK_NAME, RunDir

_CHECKPOINTS = re.compile(r"checkpoint_p\d+")
_UNFINISHED = re.compile(r"\.tmp-\d+-[0-9a-f]{12}")
_WRITTEN = re.compile(
    "|".join(map(re.escape, (CONFIG_NAME, RUN_NAME, f"{RUN_NAME}.unreadable", METRICS_NAME, SUMMARY_NAME)))
    + r"|sf_log[^/]*\.txt"
    r"|matches\.json|population\.jsonl?|population\.(svg|png)|git(_[0-9a-f]{16})?\.diff|events\.out\.tfevents\.[^/]+"
)
_FOLDERS = re.compile(
    rf"policy_\d+(/events\.out\.tfevents\.[^/]+)?|{VIDEOS_NAME}(/(eval_\d+\.(mp4|gif)|{_UNFINISHED.pattern}))?"
)

_log = logging.getLogger(__name__)


def archive_run(rundir: RunDir, behavior: Literal["restart", "overwrite"]) -> Path | None:
    """Give ``rundir`` a new, empty folder; returns where the old one is now, None if it was empty.

    Raises RunDirError if it cannot be moved.
    """
    if all(entry.name == LOCK_NAME for entry in rundir.path.iterdir()):
        return None
    name, numbers = rundir.path.name, (f"{number:04d}" for number in itertools.count(1))
    if behavior == "restart":
        candidates = (rundir.path.with_name(f"{name}_old{number}") for number in numbers)
        target = next(folder for folder in candidates if not os.path.lexists(folder))
    else:
        candidates = (rundir.path.with_name(f"{name}_overwritten{number}") for number in itertools.chain([""], numbers))
        target = next(folder for folder in candidates if _is_free(folder, name))
    rundir.move_to(target)
    _log.info("the earlier run %s is now %s", rundir.path, target)
    return target


def _is_free(folder: Path, experiment: str) -> bool:
    """Whether ``folder`` does not exist, or has been removed just now."""
    if not os.path.lexists(folder):
        return True
    reason = _cleared(folder, experiment)
    if reason is not None:
        _log.warning("%s is kept: %s", folder, reason)
    return reason is None


def _cleared(folder: Path, experiment: str) -> str | None:
    """Remove the run moved to ``folder``; returns the reason if it stays. See NOTE [Nothing is deleted]."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return "it is not a folder"
        if not _was_run_of(folder, experiment):
            return f"it does not hold an earlier run of {experiment!r}"
        with RunDir.open(folder.parent, folder.name):
            files, folders = list[Path](), list[Path]()
            for where, inside, names in os.walk(folder):  # does not follow links
                files += [Path(where, name) for name in names]
                folders += [Path(where, name) for name in inside]
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
        return bool(atomic.read_json(folder / CONFIG_NAME)["config"]["experiment"] == experiment)
    except FileNotFoundError:
        return all(entry.name == LOCK_NAME for entry in folder.iterdir())
    except (ValueError, KeyError, TypeError):
        return False


def _written_here(entry: Path, folder: Path) -> bool:
    """Whether ``entry``, anywhere below ``folder``, is a file or folder that a run writes there."""
    *parents, name = entry.relative_to(folder).parts
    mode = entry.lstat().st_mode
    if _FOLDERS.fullmatch("/".join((*parents, name))):
        return stat.S_ISDIR(mode) if not parents else stat.S_ISREG(mode)
    if stat.S_ISDIR(mode):
        return _holds_checkpoints([*parents, name])
    if not stat.S_ISREG(mode):
        return False
    if parents:
        return _holds_checkpoints(parents) and (is_checkpoint(name) or _UNFINISHED.fullmatch(name) is not None)
    return name == LOCK_NAME or any(pattern.fullmatch(name) for pattern in (_WRITTEN, _UNFINISHED))


def _holds_checkpoints(parts: list[str]) -> bool:
    return _CHECKPOINTS.fullmatch(parts[0]) is not None and parts[1:] in ([], [MILESTONES])
