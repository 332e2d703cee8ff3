"""Room: one directory of checkpoints. In: payloads of plain values. Out: files, and the payload that still loads.

NOTE [Checkpoint commit]: a checkpoint is ``<name>.pth`` beside ``<name>.pth.json`` (its size, sha256 and
versions). The payload is written and hashed under a temporary name, the sidecar is put in place, and then
the payload is renamed: that rename is the commit, so a kill at any moment leaves a sidecar without payload
(nothing) or both (a checkpoint). Where a name is written again the sidecar vouches for the old content too
until the rename is done. A ``.pth`` without a sidecar was not made here whole, and is not trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch

from sfactory import __version__, atomic
from sfactory.errors import CannotSaveError, CheckpointError

FORMAT_VERSION = 1

# Nested dicts, lists and tuples of tensors and scalars; the values differ in type, and the caller knows them.
Payload = dict[str, Any]
Kind = Literal["latest", "best"]

_NAMES: dict[Kind, re.Pattern[str]] = {
    "latest": re.compile(r"checkpoint_(\d{9,})_(\d+)\.pth"),
    "best": re.compile(r"best_(\d{9,})_(\d+)_-?\d+\.\d{3}\.pth"),
}
_SET_ASIDE = "set_aside_"
_SCALARS = (type(None), bool, int, float, str)

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


@dataclass(frozen=True)
class _Content:
    """What identifies the bytes of a payload file."""

    size: int
    sha256: str


class _Unusable(Exception):
    """One checkpoint cannot be used; the text is the reason."""


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

    def tidy(self) -> None:
        """Remove what writers that were killed left half done. For the process that saves, before its first save."""
        for stale in atomic.remove_stale(self.path):
            _log.warning("removed %s: the process that wrote it died before it was done", stale)

    def save(self, payload: Mapping[str, Any], train_step: int, env_steps: int) -> Path:
        """Save as ``checkpoint_<train_step>_<env_steps>.pth``; when this returns it is on the disk.

        Older ones beyond ``keep`` are deleted. Higher-numbered ones are what an abandoned continuation left
        (the run went on from an older or the best checkpoint): they are renamed out of the way, not deleted.

        Raises:
            CannotSaveError: the disk is full or refuses; earlier checkpoints are untouched, try again later.
            TypeError: the payload holds a value of another type; the text names its place.
        """
        path = self._commit(f"checkpoint_{train_step:09d}_{env_steps}.pth", payload, train_step, env_steps)
        try:
            self._set_aside_after(path)
            committed = [old for old in _listing(self.path, "latest") if _sidecar(old).exists()]
            for old in committed[: -self._keep]:
                _remove(old)
            self._remove_orphans()
        except OSError as error:
            _log.warning("%s is saved, but older checkpoints could not be cleared away: %s", path, error)
        return path

    def save_best(self, payload: Mapping[str, Any], train_step: int, env_steps: int, metric: float) -> Path:
        """Save as ``best_<train_step>_<env_steps>_<metric>.pth``, then delete the best one before it.

        Raises as ``save``, and ValueError if ``metric`` is not finite.
        """
        if not math.isfinite(metric):
            raise ValueError(f"metric={metric} of the best policy at env step {env_steps} is not finite")
        name = f"best_{train_step:09d}_{env_steps}_{metric:.3f}.pth"
        path = self._commit(name, payload, train_step, env_steps)
        try:
            for old in _listing(self.path, "best"):
                if old != path:
                    _remove(old)
        except OSError as error:
            _log.warning("%s is saved, but the previous best could not be removed: %s", path, error)
        return path

    def load(self, kind: Kind = "latest") -> Loaded | None:
        """The newest checkpoint of a kind that is whole, on the CPU; None only if there is none of that kind.

        Damaged ones are passed over with a warning. Nothing is deleted.

        Raises:
            CheckpointError: there are checkpoints but none can be used, or one is of another format version.
        """
        candidates = _listing(self.path, kind)[::-1]
        skipped: list[Skipped] = []
        for path in candidates:
            try:
                payload = _read(path)
            except _Unusable as error:
                skipped.append(Skipped(path, str(error)))
                continue
            for bad in skipped:
                _log.warning("checkpoint %s skipped (%s); using %s instead", bad.path, bad.reason, path)
            return Loaded(payload, path, tuple(skipped))
        if not candidates:
            return None
        reasons = "\n".join(f"  {bad.path}: {bad.reason}" for bad in skipped)
        raise CheckpointError(
            f"{self.path} holds {len(skipped)} checkpoint(s) and none can be loaded:\n{reasons}\n"
            f"Nothing was deleted. {self._way_out(kind)}"
        )

    def _way_out(self, kind: Kind) -> str:
        other: Kind = "best" if kind == "latest" else "latest"
        if _listing(self.path, other):
            return f"Go on from the {other} one with --load_checkpoint_kind={other}, or start anew: --experiment=..."
        return "Restore one from a backup, or start a new run with another --experiment."

    def load_to_go_on(self, kind: Kind = "latest") -> Loaded | None:
        """Like ``load``, but a run that has saved only a best checkpoint yet goes on from that one."""
        loaded = self.load(kind)
        if loaded is None and kind == "latest":
            loaded = self.load("best")
            if loaded is not None:
                _log.warning("no latest checkpoint was saved; using the best one, %s", loaded.path)
        return loaded

    def _commit(self, name: str, payload: Mapping[str, Any], train_step: int, env_steps: int) -> Path:
        """Write one checkpoint. See NOTE [Checkpoint commit]."""
        if train_step < 0 or env_steps < 0:
            raise ValueError(f"checkpoint of train step {train_step} and env step {env_steps}: negative")
        plain = _plain(dict(payload), "payload")
        path = self.path / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with atomic.replacing(path) as file:
                content = _write_payload(plain, file)
                record = _record(content, _current_content(path), train_step, env_steps)
                atomic.write_json(_sidecar(path), record)
        except OSError as error:
            # A disk that fails may refuse the clean-up too; a sidecar alone counts as nothing.
            with contextlib.suppress(OSError):
                if not path.exists():
                    _sidecar(path).unlink(missing_ok=True)
            raise CannotSaveError(
                f"checkpoint {path} could not be written: {error}. Earlier checkpoints are untouched; "
                "check the free space and the permissions of its directory."
            ) from error
        return path

    def _set_aside_after(self, saved: Path) -> None:
        """Rename checkpoints numbered above the one just saved, so that numbers always tell the newest."""
        checkpoints = _listing(self.path, "latest")
        for path in checkpoints[checkpoints.index(saved) + 1 :]:
            aside = path.with_name(_SET_ASIDE + path.name)
            os.replace(path, aside)
            if _sidecar(path).exists():
                os.replace(_sidecar(path), _sidecar(aside))
            _log.warning("%s is not part of this run's past any more; renamed to %s", path, aside.name)

    def _remove_orphans(self) -> None:
        """Delete sidecars whose payload never came, or is gone. Only the one process that saves may do this."""
        for sidecar in self.path.glob("*.pth.json"):
            if not sidecar.with_suffix("").exists():
                sidecar.unlink(missing_ok=True)


def _listing(directory: Path, kind: Kind) -> list[Path]:
    """Payload files of a kind, oldest first by (train_step, env_steps)."""
    found: list[tuple[int, int, str]] = []
    for path in directory.glob("*.pth"):
        match = _NAMES[kind].fullmatch(path.name)
        if match:
            found.append((int(match[1]), int(match[2]), path.name))
    return [directory / name for _, _, name in sorted(found)]


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _remove(path: Path) -> None:
    # In this order a kill in between leaves a sidecar without payload, which counts as nothing.
    path.unlink(missing_ok=True)
    _sidecar(path).unlink(missing_ok=True)


def _plain(value: object, where: str) -> Any:
    """A copy of ``value`` in plain containers and detached tensors; TypeError names what is not plain.

    Types are compared exactly: numpy's float64 is a float to isinstance, but needs its class to be loaded.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value, where)
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{where} has the key {key!r} of type {type(key).__name__}; use str or int")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        return type(value)(_plain(item, f"{where}[{index}]") for index, item in enumerate(value))
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, None, bool, "
        "int, float, str, and lists, tuples and dicts of these (convert with float(), int(), .tolist())"
    )


def _plain_tensor(value: torch.Tensor, where: str) -> torch.Tensor:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_meta:
        raise TypeError(f"{where} is a {type(value).__name__} ({value.layout}, {value.device}); use a dense tensor")
    tensor = value.detach()
    # A view would bring the whole of its storage into the file.
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


class _HashingSink:
    """A file for ``torch.save`` that hashes what passes and remembers why writing failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._hash.update(data)
        self._size += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def content(self) -> _Content:
        return _Content(self._size, self._hash.hexdigest())


def _write_payload(payload: Payload, file: BinaryIO) -> _Content:
    sink = _HashingSink(file)
    try:
        torch.save(payload, sink)  # type: ignore[arg-type]  # it writes and flushes, no more
    except RuntimeError as error:
        # torch reports a failed write as an inconsistency of its archive; the cause is what matters.
        if sink.error is not None:
            raise sink.error from error
        raise
    return sink.content


def _record(content: _Content, replaced: _Content | None, train_step: int, env_steps: int) -> dict[str, object]:
    """What the sidecar says. ``replaced`` is the content that is valid until the new one is renamed over it."""
    return {
        "format_version": FORMAT_VERSION,
        "size": content.size,
        "sha256": content.sha256,
        "replaces": None if replaced is None else {"size": replaced.size, "sha256": replaced.sha256},
        "train_step": train_step,
        "env_steps": env_steps,
        "sfactory": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _current_content(path: Path) -> _Content | None:
    """The content of a checkpoint that is about to be written again, or None if there is no good one."""
    try:
        with path.open("rb") as file:
            return _verified(path, file)
    except (OSError, _Unusable, CheckpointError):
        return None


def _verified(path: Path, file: BufferedReader) -> _Content:
    """Compare an open payload file with its sidecar; raises _Unusable with the difference."""
    vouched = _read_sidecar(path)
    size = os.fstat(file.fileno()).st_size
    if all(size != content.size for content in vouched):
        raise _Unusable(f"it has {size} bytes where its sidecar says {vouched[0].size}: truncated or overwritten")
    actual = _Content(size, hashlib.file_digest(file, "sha256").hexdigest())
    if actual not in vouched:
        raise _Unusable("its sha256 is not the one in its sidecar: the content was damaged")
    return actual


def _read_sidecar(path: Path) -> list[_Content]:
    """The contents that the sidecar of ``path`` vouches for, the newest first."""
    sidecar = _sidecar(path)
    try:
        record = json.loads(sidecar.read_bytes())
        # The version comes first: another format may lack the other fields.
        _check_format(path, record["format_version"], record.get("sfactory"))
        return [_Content(int(item["size"]), str(item["sha256"])) for item in (record, record["replaces"]) if item]
    except FileNotFoundError:
        raise _Unusable(f"not committed: {sidecar.name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Unusable(f"{sidecar.name} cannot be read: {error!r}") from error


def _check_format(path: Path, version: object, writer: object) -> None:
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has checkpoint format {version!r}, written by sfactory {writer}; this is sfactory {__version__}, "
            f"which reads format {FORMAT_VERSION}. Use the version that wrote it, or start a new run with another "
            "--experiment. Nothing was deleted."
        )


def _read(path: Path) -> Payload:
    """The verified payload of one checkpoint; raises _Unusable with the reason."""
    try:
        with path.open("rb") as file:
            _verified(path, file)
            file.seek(0)
            payload = torch.load(file, map_location="cpu", weights_only=True)
    except (_Unusable, CheckpointError):
        raise
    except Exception as error:
        # A hostile or damaged pickle can make the reader raise anything; none of it may end the search.
        first_line = (str(error).splitlines() or [""])[0]
        raise _Unusable(f"it cannot be loaded safely: {type(error).__name__}: {first_line}") from error
    try:
        plain = _plain(payload, "payload")
    except TypeError as error:
        raise _Unusable(str(error)) from error
    if not isinstance(plain, dict):
        raise _Unusable(f"it holds a {type(plain).__name__} where a dict is expected")
    return plain
