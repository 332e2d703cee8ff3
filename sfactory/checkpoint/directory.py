"""Saves, finds and prunes the checkpoints of one policy in one directory.

The latest and the best checkpoints are in the directory itself, milestones in a folder below it. ``file`` writes and
reads a single checkpoint.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sfactory import atomic
from sfactory.checkpoint.file import (
    FORMAT_VERSION,
    Payload,
    Unusable,
    commit,
    move,
    read,
    remove,
    remove_orphans,
    sidecar_of,
)
from sfactory.errors import CannotSaveError, CheckpointError, clean

__all__ = ["FORMAT_VERSION", "MILESTONES", "CheckpointDir", "Kind", "Loaded", "Payload", "is_checkpoint"]

Kind = Literal["latest", "best", "milestone"]

MILESTONES = "milestones"

_NUMBERED = r"checkpoint_(\d{9,})_(\d+)\.pth"
_BEST = r"best_(\d{9,})_(\d+)_-?\d+\.\d{3}\.pth"
_NAMES: dict[Kind, re.Pattern[str]] = {
    "latest": re.compile(_NUMBERED),
    "best": re.compile(_BEST),
    "milestone": re.compile(_NUMBERED),
}
_KINDS: tuple[Kind, ...] = ("latest", "best", "milestone")
_ABANDONED = "set_aside_"
_WRITTEN = re.compile(rf"(?:{_ABANDONED})*(?:{_NUMBERED}|{_BEST})(?:\.json)?")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """A payload and its path."""

    payload: Payload
    path: Path


class _Entry(NamedTuple):
    """A payload file and the numbers in its name, a train step and an env step; entries sort from oldest to newest."""

    place: tuple[int, int]
    path: Path


def is_checkpoint(name: str) -> bool:
    """Whether a file of this name, in a directory of checkpoints or its milestones, was written by CheckpointDir."""
    return _WRITTEN.fullmatch(name) is not None


class CheckpointDir:
    """Saves, finds, verifies and prunes the checkpoints of one policy. One process saves; any may load.

    Payloads are dicts of tensors, None, bool, int, float, str, and lists, tuples and dicts of these, so that
    loading never runs code. The caller decides what they mean, and when to save.
    """

    def __init__(self, path: Path | str, keep: int, typed: Callable[[Kind], str] | None = None) -> None:
        """``keep`` latest checkpoints, at least one, survive a save.

        typed: what the user types for a kind, for errors; None: a run resumes, which has a flag for it.
        """
        self.path = Path(path)
        self._keep, self._typed = keep, typed
        self._abandoned: set[Path] = set()  # saved after the checkpoint that the run resumed from
        self._place: tuple[int, int] | None = None  # identity of the run directory, for the process that saves

    def tidy(self) -> None:
        """Remove unfinished files of writers that were killed. For the process that saves, before its first save.

        From then on nothing is saved after the run directory was renamed or removed, where another run may be by now.
        """
        self._place = _identity(self.path.parent)
        for stale in (*atomic.remove_stale(self.path), *atomic.remove_stale(self.path / MILESTONES)):
            _log.warning("removed %s: the process that wrote it died before it was done", stale)

    def save(self, payload: Mapping[str, Any], train_step: int, env_steps: int) -> Path:
        """Save as ``checkpoint_<train_step>_<env_steps>.pth``; when this returns it is on the disk.

        Older ones beyond ``keep`` are deleted. Higher-numbered ones, and all that ``resume_from`` abandoned, are
        renamed, not deleted.

        Raises:
            CannotSaveError: the disk is full or refuses; earlier checkpoints are untouched, try again later.
            TypeError: the payload holds a value of another type; the text names its place.
        """
        return self._save("latest", f"checkpoint_{train_step:09d}_{env_steps}.pth", payload, train_step, env_steps)

    def save_best(self, payload: Mapping[str, Any], train_step: int, env_steps: int, metric: float) -> Path:
        """Save as ``best_<train_step>_<env_steps>_<metric>.pth``, then delete the previous best one.

        Otherwise as ``save``. Raises ValueError, too, if ``metric`` is not finite.
        """
        if not math.isfinite(metric):
            raise ValueError(f"metric={metric} of the best policy at env step {env_steps} is not finite")
        name = f"best_{train_step:09d}_{env_steps}_{metric:.3f}.pth"
        return self._save("best", name, payload, train_step, env_steps)

    def save_milestone(self, payload: Mapping[str, Any], train_step: int, env_steps: int) -> Path:
        """Save as ``milestones/checkpoint_<train_step>_<env_steps>.pth``, never deleted; otherwise as ``save``."""
        return self._save("milestone", f"checkpoint_{train_step:09d}_{env_steps}.pth", payload, train_step, env_steps)

    def load(self, kind: Kind = "latest") -> Loaded | None:
        """The newest intact checkpoint of a kind, on the CPU; None if there is none of that kind.

        Damaged ones are skipped with a warning. Nothing is deleted.

        Raises:
            CheckpointError: there are checkpoints but none can be used, or one is of another format version.
        """
        candidates = [entry.path for entry in reversed(self._listing(kind))]
        return _first_usable(candidates, f"{self.path} holds", self._alternative(kind))

    def kind_to_resume(self, wanted: Kind, learns: bool) -> Kind:
        """``wanted``; a policy that does not learn and has none of that kind resumes from its latest."""
        return wanted if learns or self._listing(wanted) else "latest"

    def load_to_resume(self, kind: Kind = "latest") -> Loaded | None:
        """Like ``load``, but a run without a latest checkpoint resumes from the newest one of the other kinds."""
        loaded = self.load(kind)
        if loaded is not None or kind != "latest":
            return loaded
        others = [entry for other in _KINDS if other != kind for entry in self._listing(other)]
        candidates = [entry.path for entry in sorted(others, reverse=True)]
        loaded = _first_usable(candidates, f"{self.path} holds no latest checkpoint, but", self._alternative(kind))
        if loaded is not None:
            _log.warning("no latest checkpoint was saved; using %s", loaded.path)
        return loaded

    def resume_from(self, loaded: Loaded, kind: Kind) -> None:
        """The run resumes from ``loaded``, which ``load_to_resume(kind)`` returned: abandon what was saved later.

        Abandoned checkpoints are no longer loaded, and the next save renames them. With the kind "latest" a later best
        policy, which a killed run may have, stays the best: the user has not chosen an older one.
        """
        kinds = [each for each in _KINDS if each != "best" or kind != "latest"]
        place = next(entry.place for each in _KINDS for entry in self._listing(each) if entry.path == loaded.path)
        self._abandoned.update(path for each in kinds for path in self._later(each, place))

    def load_at(self, env_steps: int, kind: Kind | None = None) -> Loaded:
        """The checkpoint of exactly that env step, of one kind or of any, on the CPU.

        Raises:
            CheckpointError: there is none (the text lists the steps that exist), or it cannot be loaded.
        """
        listings = {each: self._listing(each) for each in (_KINDS if kind is None else (kind,))}
        found = [f"{each}: {', '.join(str(e.place[1]) for e in known)}" for each, known in listings.items() if known]
        advice = f"There are {'; '.join(found)}." if found else "There is none."
        paths = [e.path for known in listings.values() for e in reversed(known) if e.place[1] == env_steps]
        loaded = _first_usable(paths, f"{self.path} holds, for env step {env_steps},", advice)
        if loaded is None:
            which = "checkpoint" if kind is None else f"{kind} checkpoint"
            raise CheckpointError(f"{self.path} holds no {which} of env step {env_steps}. {advice}")
        return loaded

    def env_steps_of(self, kind: Kind) -> list[int]:
        """Env steps of all checkpoints of a kind, oldest first, for ``load_at``."""
        return [entry.place[1] for entry in self._listing(kind)]

    def holds_any(self) -> bool:
        """True if there is a checkpoint of any kind, intact or not."""
        return any(self._listing(kind) for kind in _KINDS)

    def _alternative(self, kind: Kind) -> str:
        other = next((other for other in _KINDS if other != kind and self._listing(other)), None)
        if self._typed is not None:
            return "Restore one from a backup." if other is None else f"There is a {other} one: {self._typed(other)}"
        here = f"Resume from the {other} one with --load_checkpoint_kind={other}" if other else ""
        return f"{here or 'Restore one from a backup'}, or start a new run with another --experiment."

    def _folder(self, kind: Kind) -> Path:
        return self.path / MILESTONES if kind == "milestone" else self.path

    def _listing(self, kind: Kind) -> list[_Entry]:
        """Payload files of a kind that are not abandoned, oldest first; CheckpointError if ``path`` is no folder."""
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is not a folder, so nothing could be saved there; move it away")
        named = [(_NAMES[kind].fullmatch(path.name), path) for path in self._folder(kind).glob("*.pth")]
        return sorted(
            _Entry((int(match[1]), int(match[2])), path)
            for match, path in named
            if match is not None and path not in self._abandoned
        )

    def _later(self, kind: Kind, place: tuple[int, int]) -> list[Path]:
        """Checkpoints of a kind that are numbered above ``place``."""
        return [entry.path for entry in self._listing(kind) if entry.place > place]

    def _save(self, kind: Kind, name: str, payload: Mapping[str, Any], train_step: int, env_steps: int) -> Path:
        """Commit one checkpoint; then rename those not of its past, so that the highest number is the newest."""
        path = self._folder(kind) / name
        if self._place not in (None, _identity(self.path.parent)):
            raise CannotSaveError(f"checkpoint {path} is not written: {self.path.parent} was renamed or removed")
        if path in self._abandoned and not self._rename(path):
            raise CannotSaveError(f"checkpoint {path} would overwrite an earlier one that could not be renamed")
        commit(path, payload, train_step, env_steps)
        try:
            for other in sorted({*self._abandoned, *self._later(kind, (train_step, env_steps))}):
                self._rename(other)
            self._remove_older(kind, path)
        except (OSError, CheckpointError) as error:  # the latter if the folder is moved away meanwhile
            _log.warning("%s is saved, but older files could not be removed: %s", path, error)
        return path

    def _remove_older(self, kind: Kind, saved: Path) -> None:
        """Delete what a checkpoint of this kind replaces, and sidecars without a payload beside it."""
        listed = [entry.path for entry in self._listing(kind)]
        if kind == "latest":
            for old in [path for path in listed if sidecar_of(path).exists()][: -self._keep]:
                remove(old)
        elif kind == "best":
            for old in set(listed) - {saved}:
                remove(old)
        remove_orphans(saved.parent)

    def _rename(self, path: Path) -> bool:
        """Mark one checkpoint as abandoned by its name; if the disk refuses, log a warning and return False."""
        renamed = path.with_name(_ABANDONED + path.name)
        while renamed.exists():  # from an earlier time that the run went back
            renamed = renamed.with_name(_ABANDONED + renamed.name)
        try:
            move(path, renamed)
        except OSError as error:
            _log.warning("%s is not part of this run's past any more, and could not be renamed: %s", path, error)
            return False
        self._abandoned.discard(path)
        _log.warning("%s is not part of this run's past any more; renamed to %s", path, renamed.name)
        return True


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells a folder from another one of its name; None if there is none."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _first_usable(candidates: list[Path], holder: str, advice: str) -> Loaded | None:
    """The first of ``candidates`` that can be loaded; None if there are none. CheckpointError if all are damaged."""
    skipped: dict[Path, str] = {}
    for path in candidates:
        try:
            payload = read(path)
        except Unusable as error:
            skipped[path] = clean(str(error))
            continue
        for bad, reason in skipped.items():
            _log.warning("checkpoint %s skipped (%s); using %s instead", bad, reason, path)
        return Loaded(payload, path)
    if not candidates:
        return None
    reasons = "\n".join(f"  {bad}: {reason}" for bad, reason in skipped.items())
    raise CheckpointError(
        f"{holder} {len(skipped)} checkpoint(s) and none can be loaded:\n{reasons}\nNothing was deleted. {advice}"
    )
