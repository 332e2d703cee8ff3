"""Room: one directory of checkpoints. In: payloads of plain values. Out: files, and the payload that still loads.

The latest and the best checkpoints lie in the directory itself, milestones in a folder of their own below it.
How one of them is written and read is the matter of ``checkpoint_file``.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sfactory import atomic
from sfactory.checkpoint_file import (
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
from sfactory.errors import CannotSaveError, CheckpointError

__all__ = ["FORMAT_VERSION", "MILESTONES", "CheckpointDir", "Kind", "Loaded", "Payload", "Skipped", "is_checkpoint"]

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
_SET_ASIDE = "set_aside_"
_WRITTEN = re.compile(rf"(?:{_SET_ASIDE})*(?:{_NUMBERED}|{_BEST})(?:\.json)?")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that was passed over when loading, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Loaded:
    """What was loaded, from where, and which newer checkpoints had to be passed over."""

    payload: Payload
    path: Path
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, order=True)
class _Entry:
    """One payload file by the numbers in its name, in the order of which the last one is the newest."""

    train_step: int
    env_steps: int
    path: Path

    @property
    def place(self) -> tuple[int, int]:
        """Where in its run it was saved."""
        return self.train_step, self.env_steps


def is_checkpoint(name: str) -> bool:
    """Whether a file of this name, in a directory of checkpoints or its milestones, is one that was written here."""
    return _WRITTEN.fullmatch(name) is not None


class CheckpointDir:
    """Saves, finds, verifies and prunes the checkpoints of one policy. One process saves; any may load.

    Payloads are dicts of tensors, None, bool, int, float, str, and lists, tuples and dicts of these, so that
    loading never runs code. What the values mean, and when to save, is the caller's business.
    """

    def __init__(self, path: Path | str, keep: int) -> None:
        """``keep`` latest checkpoints survive a save."""
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint must be kept")
        self.path = Path(path)
        self._keep = keep
        self._idle_warning: set[Path] = set()

    def tidy(self) -> None:
        """Remove what writers that were killed left half done. For the process that saves, before its first save."""
        for stale in (*atomic.remove_stale(self.path), *atomic.remove_stale(self.path / MILESTONES)):
            _log.warning("removed %s: the process that wrote it died before it was done", stale)

    def save(self, payload: Mapping[str, Any], train_step: int, env_steps: int) -> Path:
        """Save as ``checkpoint_<train_step>_<env_steps>.pth``; when this returns it is on the disk.

        Older ones beyond ``keep`` are deleted. Higher-numbered ones, and all that ``resume_from`` left behind, are
        renamed out of the way, not deleted.

        Raises:
            CannotSaveError: the disk is full or refuses; earlier checkpoints are untouched, try again later.
            TypeError: the payload holds a value of another type; the text names its place.
        """
        path = self.path / f"checkpoint_{train_step:09d}_{env_steps}.pth"
        self._commit("latest", path, payload, train_step, env_steps)
        try:
            committed = [entry.path for entry in self._listing("latest") if sidecar_of(entry.path).exists()]
            for old in committed[: -self._keep]:
                remove(old)
            remove_orphans(self.path)
        except OSError as error:
            _log.warning("%s is saved, but older checkpoints could not be cleared away: %s", path, error)
        return path

    def save_best(self, payload: Mapping[str, Any], train_step: int, env_steps: int, metric: float) -> Path:
        """Save as ``best_<train_step>_<env_steps>_<metric>.pth``, then delete the best one before it.

        What is not of this run's past is renamed as ``save`` does. Raises as ``save``, and ValueError if ``metric`` is
        not finite.
        """
        if not math.isfinite(metric):
            raise ValueError(f"metric={metric} of the best policy at env step {env_steps} is not finite")
        path = self.path / f"best_{train_step:09d}_{env_steps}_{metric:.3f}.pth"
        self._commit("best", path, payload, train_step, env_steps)
        try:
            for entry in self._listing("best"):
                if entry.path != path:
                    remove(entry.path)
        except OSError as error:
            _log.warning("%s is saved, but the previous best could not be removed: %s", path, error)
        return path

    def save_milestone(self, payload: Mapping[str, Any], train_step: int, env_steps: int) -> Path:
        """Save as ``milestones/checkpoint_<train_step>_<env_steps>.pth``, which is never deleted.

        What is not of this run's past is renamed as ``save`` does. Raises as ``save``.
        """
        path = self.path / MILESTONES / f"checkpoint_{train_step:09d}_{env_steps}.pth"
        self._commit("milestone", path, payload, train_step, env_steps)
        try:
            remove_orphans(path.parent)
        except OSError as error:
            _log.warning("%s is saved, but leftovers beside it could not be cleared away: %s", path, error)
        return path

    def load(self, kind: Kind = "latest") -> Loaded | None:
        """The newest checkpoint of a kind that is whole, on the CPU; None only if there is none of that kind.

        Damaged ones are passed over with a warning. Nothing is deleted.

        Raises:
            CheckpointError: there are checkpoints but none can be used, or one is of another format version.
        """
        candidates = [entry.path for entry in reversed(self._listing(kind))]
        return _first_usable(candidates, f"{self.path} holds", self._way_out(kind))

    def load_to_resume(self, kind: Kind = "latest") -> Loaded | None:
        """Like ``load``, but a run that has no latest checkpoint yet goes on from the newest of the other kinds."""
        loaded = self.load(kind)
        if loaded is not None or kind != "latest":
            return loaded
        others = [entry for other in _KINDS if other != kind for entry in self._listing(other)]
        candidates = [entry.path for entry in sorted(others, reverse=True)]
        loaded = _first_usable(candidates, f"{self.path} holds no latest checkpoint, but", self._way_out(kind))
        if loaded is not None:
            _log.warning("no latest checkpoint was saved; using %s", loaded.path)
        return loaded

    def resume_from(self, loaded: Loaded, kind: Kind) -> None:
        """The run goes on from ``loaded``, found by ``load_to_resume(kind)``: what was saved later is left behind.

        It counts no more from here on, and the next save renames it. Where the latest was asked for, nobody chose an
        older one: a best policy that is later, which a killed run may have, stays the best.
        """
        kinds = [each for each in _KINDS if each != "best" or kind != "latest"]
        place = next(entry.place for each in _KINDS for entry in self._listing(each) if entry.path == loaded.path)
        self._idle_warning.update(path for each in kinds for path in self._later(each, place))

    def load_at(self, env_steps: int, kind: Kind | None = None) -> Loaded:
        """The checkpoint of exactly that env step, of one kind or of any, on the CPU.

        Raises:
            CheckpointError: there is none (the text names the steps there are), or it cannot be loaded.
        """
        kinds = _KINDS if kind is None else (kind,)
        entries = [entry for each in kinds for entry in reversed(self._listing(each)) if entry.env_steps == env_steps]
        advice = self._steps_there_are(kinds)
        loaded = _first_usable(
            [entry.path for entry in entries], f"{self.path} holds, for env step {env_steps},", advice
        )
        if loaded is None:
            which = "checkpoint" if kind is None else f"{kind} checkpoint"
            raise CheckpointError(f"{self.path} holds no {which} of env step {env_steps}. {advice}")
        return loaded

    def holds_any(self) -> bool:
        """True if there is a checkpoint of any kind, whole or not."""
        return any(self._listing(kind) for kind in _KINDS)

    def _steps_there_are(self, kinds: tuple[Kind, ...]) -> str:
        """A sentence that names the env steps of all checkpoints of these kinds."""
        steps = {kind: [entry.env_steps for entry in self._listing(kind)] for kind in kinds}
        found = [f"{kind}: {', '.join(map(str, numbers))}" for kind, numbers in steps.items() if numbers]
        return f"There are {'; '.join(found)}." if found else "There is none at all."

    def _way_out(self, kind: Kind) -> str:
        for other in _KINDS:
            if other != kind and self._listing(other):
                return (
                    f"Go on from the {other} one with --load_checkpoint_kind={other}, or start anew: --experiment=..."
                )
        return "Restore one from a backup, or start a new run with another --experiment."

    def _listing(self, kind: Kind) -> list[_Entry]:
        """Payload files of a kind that were not left behind, oldest first."""
        directory = self.path / MILESTONES if kind == "milestone" else self.path
        found: list[_Entry] = []
        for path in directory.glob("*.pth"):
            match = _NAMES[kind].fullmatch(path.name)
            if match and path not in self._idle_warning:
                found.append(_Entry(int(match[1]), int(match[2]), path))
        return sorted(found)

    def _later(self, kind: Kind, place: tuple[int, int]) -> list[Path]:
        """Those of a kind that are numbered above ``place``."""
        return [entry.path for entry in self._listing(kind) if entry.place > place]

    def _commit(self, kind: Kind, path: Path, payload: Mapping[str, Any], train_step: int, env_steps: int) -> None:
        """Commit one of a kind; then rename what is not of its past, so that numbers always tell the newest."""
        if path in self._idle_warning and not self._set_aside(path):
            raise CannotSaveError(f"checkpoint {path} would be written over an earlier one that could not be renamed")
        commit(path, payload, train_step, env_steps)
        for other in sorted({*self._idle_warning, *self._later(kind, (train_step, env_steps))}):
            self._set_aside(other)

    def _set_aside(self, path: Path) -> bool:
        """Rename one checkpoint; if the disk refuses, it stays, with a warning, and False is returned."""
        aside = path.with_name(_SET_ASIDE + path.name)
        while aside.exists():  # set aside earlier, when the run went back before
            aside = aside.with_name(_SET_ASIDE + aside.name)
        try:
            move(path, aside)
        except OSError as error:
            _log.warning("%s is not part of this run's past any more, and could not be renamed: %s", path, error)
            return False
        self._idle_warning.discard(path)
        _log.warning("%s is not part of this run's past any more; renamed to %s", path, aside.name)
        return True


def _first_usable(candidates: list[Path], holder: str, advice: str) -> Loaded | None:
    """The first of ``candidates`` that can be loaded; None if there are none, CheckpointError if all are damaged."""
    skipped: list[Skipped] = []
    for path in candidates:
        try:
            payload = read(path)
        except Unusable as error:
            skipped.append(Skipped(path, str(error)))
            continue
        for bad in skipped:
            _log.warning("checkpoint %s skipped (%s); using %s instead", bad.path, bad.reason, path)
        return Loaded(payload, path, tuple(skipped))
    if not candidates:
        return None
    reasons = "\n".join(f"  {bad.path}: {bad.reason}" for bad in skipped)
    raise CheckpointError(
        f"{holder} {len(skipped)} checkpoint(s) and none can be loaded:\n{reasons}\nNothing was deleted. {advice}"
    )
