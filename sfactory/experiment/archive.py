"""Moves an earlier run of the same name out of the way of a new one; undoes what a start without training has changed.

NOTE [Nothing is deleted]: only a run that an earlier overwrite moved is ever removed, file by file, and only if its
folder holds nothing but what training, plots and the page of a run of this name have written. One that has trained is
removed only for another one that has, and only once the run that replaces both has a checkpoint. A folder with anything
else in it (a file of the user, a video of enjoy, what a tracker keeps), a run that was resumed under its new name, or
one in use stays, and the new folder gets another number.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from sfactory import atomic
from sfactory.checkpoint.directory import MILESTONES, is_checkpoint
from sfactory.config.saved_config import (
    CONFIG_NAME,
    METRICS_NAME,
    OVERWRITTEN,
    PAGE_NAME,
    RESTARTED,
    RUN_NAME,
    SUMMARY_NAME,
    VIDEOS_NAME,
)
from sfactory.errors import Refused, RunDirError
from sfactory.experiment.run_dir import LOCK_NAME, RunDir, numbered, trained_checkpoints
from sfactory.learner.diagnostics import EVIDENCE_FILE

_CHECKPOINTS = re.compile(r"checkpoint_p\d+")
_UNFINISHED = re.compile(r"\.tmp-\d+-[0-9a-f]{12}")
_WRITTEN = re.compile(
    "|".join(map(re.escape, (CONFIG_NAME, RUN_NAME, METRICS_NAME, SUMMARY_NAME, PAGE_NAME)))
    + r"|run\.json\.unreadable(\d{4})?|sf_log[^/]*\.txt"
    r"|matches\.json|population\.jsonl?|population\.(svg|png)|git(_[0-9a-f]{16})?\.diff|events\.out\.tfevents\.[^/]+"
)
_FOLDERS = re.compile(
    rf"policy_\d+(/events\.out\.tfevents\.[^/]+)?|{VIDEOS_NAME}(/(eval_\d+\.(mp4|gif)|{_UNFINISHED.pattern}))?"
)

Behavior = Literal["restart", "overwrite"]

_log = logging.getLogger(__name__)


class EarlierRun:
    """What a start finds under the name of its run: it is put back if the start saves no training.

    archived: where the run is, if this start has taken its name.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir, self._trained = run_dir, trained_checkpoints(run_dir.path)
        self._config = _content(run_dir.path / CONFIG_NAME)
        self._behavior: Behavior | None = None
        self.archived: Path | None = None

    def __enter__(self) -> EarlierRun:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            self.put_back(isinstance(error, Refused))

    @property
    def stands(self) -> bool:
        """Whether it has trained, has its name, and nothing was saved beside it."""
        saved = trained_checkpoints(self._run_dir.path)
        return self.archived is None and bool(self._trained) and saved <= self._trained

    def archive(self, behavior: Behavior) -> None:
        """Give the run another name, and its folder's to a new, empty one. Raises RunDirError if that is not possible.

        Nothing happens if the folder is empty.
        """
        path = self._run_dir.path
        if all(entry.name == LOCK_NAME for entry in path.iterdir()):
            return
        self._behavior = behavior
        target = self._free_name()
        self._run_dir.move_to(target)
        self._trained, self.archived = set(), target
        _log.info("the earlier run %s is now %s", path, target)

    def put_back(self, refused: bool = False) -> bool:
        """Of a start that failed or was stopped: undo ``archive`` if it saved no training; returns whether it is so.

        Where nothing was archived, config.json gets its earlier content, so that the run keeps the flags that it was
        trained with; a new run that is ``refused`` has none.
        """
        if self._run_dir.lost or not trained_checkpoints(self._run_dir.path) <= self._trained:
            return False
        if self.archived is None:
            self._restore_config(refused)
            return False
        path, aside = self._run_dir.path, self._free_name()
        try:
            self._run_dir.put_back(self.archived, aside)
        except RunDirError as error:
            _log.error("%s", error)
            return False
        where = f"; what this start has left is in {aside}" if aside.exists() else ""
        _log.warning("this start has saved no training: the earlier run is %s again%s", path, where)
        self.archived = None
        return True

    def replace_older(self) -> None:
        """At the end of a start that has trained: have the archived run replace what an earlier overwrite archived.

        See NOTE [Nothing is deleted].
        """
        archived, path = self.archived, self._run_dir.path
        if archived is None or self._behavior != "overwrite" or not trained_checkpoints(path):
            return
        for folder in itertools.takewhile(lambda folder: folder != archived, _archives(path, "overwrite")):
            if _is_free(folder, path.name, even_trained=bool(trained_checkpoints(archived))):
                try:
                    with RunDir.open(archived.parent, archived.name):
                        os.rename(archived, folder)
                except (OSError, RunDirError) as error:
                    _log.warning("%s keeps this name: %s", archived, error)
                else:
                    self.archived = folder
                    _log.info("the earlier run %s is now %s", archived, folder)
                return

    def _restore_config(self, refused: bool) -> None:
        path = self._run_dir.path / CONFIG_NAME
        try:
            if self._config is None and refused:
                path.unlink(missing_ok=True)
            elif self._config is not None and self._config != _content(path):
                atomic.write_bytes(path, self._config)
                _log.warning("this start has saved no training: the run keeps the flags that it had before")
        except OSError as error:
            _log.error("%s keeps the flags of this start: %s", path, error)

    def _free_name(self) -> Path:
        """A name for an archived run. An overwrite frees one that holds another run without training."""
        assert self._behavior is not None, "something is archived"
        name = self._run_dir.path.name
        is_free = _is_missing if self._behavior == "restart" else partial(_is_free, experiment=name, even_trained=False)
        others = (folder for folder in _archives(self._run_dir.path, self._behavior) if folder != self.archived)
        return next(filter(is_free, others))


def _content(path: Path) -> bytes | None:
    """What is in a file; None if there is none that can be read."""
    try:
        return atomic.read_bytes(path)
    except OSError:
        return None


def _archives(path: Path, behavior: Behavior) -> Iterator[Path]:
    """The names that archived runs of the name ``path`` get, in their order."""
    if behavior == "overwrite":
        return numbered(path.with_name(f"{path.name}{OVERWRITTEN}"))
    return itertools.islice(numbered(path.with_name(f"{path.name}{RESTARTED}")), 1, None)


def _is_missing(folder: Path) -> bool:
    return not os.path.lexists(folder)


def _is_free(folder: Path, experiment: str, even_trained: bool) -> bool:
    """Whether ``folder`` does not exist, or was removed just now. even_trained: also one that has trained."""
    if _is_missing(folder):
        return True
    if not even_trained and trained_checkpoints(folder):
        return False
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
                return f"{foreign} may be needed; only what training, plots and pages of runs write is removed"
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
    """Whether ``entry``, anywhere below ``folder``, is what training, a plot or the page of a run writes there."""
    *parents, name = entry.relative_to(folder).parts
    mode = entry.lstat().st_mode
    if _FOLDERS.fullmatch("/".join((*parents, name))):
        return stat.S_ISDIR(mode) if not parents else stat.S_ISREG(mode)
    if stat.S_ISDIR(mode):
        return _holds_checkpoints([*parents, name])
    if not stat.S_ISREG(mode):
        return False
    if parents:
        is_own = is_checkpoint(name) or _UNFINISHED.fullmatch(name) or (name == EVIDENCE_FILE and len(parents) == 1)
        return _holds_checkpoints(parents) and bool(is_own)
    return name == LOCK_NAME or any(pattern.fullmatch(name) for pattern in (_WRITTEN, _UNFINISHED))


def _holds_checkpoints(parts: list[str]) -> bool:
    return _CHECKPOINTS.fullmatch(parts[0]) is not None and parts[1:] in ([], [MILESTONES])
