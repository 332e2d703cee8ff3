"""Writes and reads one checkpoint: a payload file and its sidecar.

NOTE [Checkpoint commit]: a checkpoint is ``<name>.pth`` beside ``<name>.pth.json`` (its size, sha256 and versions). The
payload is written and hashed under a temporary name, the sidecar is put in place, and then the payload is renamed. The
rename is the commit: a kill at any moment leaves a sidecar without payload (which counts as nothing) or both (a
checkpoint). If the name existed before, the sidecar also accepts the old content until the rename is done. A ``.pth``
without a sidecar is not trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickletools
import platform
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch

from sfactory import __version__, atomic
from sfactory.errors import CannotSaveError, CheckpointError, named

FORMAT_VERSION = 1

# Nested dicts, lists and tuples of tensors and scalars.
Payload = dict[str, Any]

_SCALARS = (type(None), bool, int, float, str)
_MOST_VALUES = 4_000_000  # of a checkpoint, tensors counted as one


class Unusable(Exception):
    """One checkpoint cannot be used; the text is the reason."""


@dataclass(frozen=True)
class _Content:
    """Identifies the bytes of a payload file."""

    size: int
    sha256: str


def sidecar_of(path: Path) -> Path:
    """Path of the sidecar of a payload file."""
    return path.with_name(path.name + ".json")


def commit(path: Path, payload: Mapping[str, Any], train_step: int, env_steps: int) -> None:
    """Write one checkpoint; when this returns it is on the disk. See NOTE [Checkpoint commit].

    Raises CannotSaveError and TypeError as ``CheckpointDir.save``.
    """
    plain = _plain(dict(payload), "payload", iter(range(_MOST_VALUES)), _own_tensor)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(path) as file:
            content = _write_payload(plain, file)
            replaced = _current_content(path)
            record = {
                "format_version": FORMAT_VERSION,
                **asdict(content),
                "replaces": None if replaced is None else asdict(replaced),  # valid until the new payload is renamed
                "train_step": train_step,
                "env_steps": env_steps,
                "run_env_steps": payload.get("run_env_steps", env_steps),  # those that no other policy counts
                "sfactory": __version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
            }
            atomic.write_json(sidecar_of(path), record)
    except OSError as error:
        # The disk may refuse the clean-up too; a sidecar alone counts as nothing.
        with contextlib.suppress(OSError):
            if not path.exists():
                sidecar_of(path).unlink(missing_ok=True)
        raise CannotSaveError(
            f"checkpoint {path} could not be written: {error}. Earlier checkpoints are untouched; "
            "check the free space and the permissions of its directory."
        ) from error


def remove(path: Path) -> None:
    """Delete one checkpoint; raises OSError if the disk refuses."""
    # In this order a kill in between leaves a sidecar without payload, which counts as nothing.
    path.unlink(missing_ok=True)
    sidecar_of(path).unlink(missing_ok=True)


def move(path: Path, to: Path) -> None:
    """Rename one checkpoint; raises OSError if the disk refuses, and then nothing has moved."""
    # In this order a kill at any moment leaves a payload with its sidecar under one of the two names, and under the
    # other at most a sidecar alone, which counts as nothing.
    with contextlib.suppress(FileNotFoundError):
        atomic.write_bytes(sidecar_of(to), atomic.read_bytes(sidecar_of(path)))
    os.replace(path, to)
    sidecar_of(path).unlink(missing_ok=True)


def remove_orphans(directory: Path) -> None:
    """Delete sidecars without a payload. Only the process that saves may do this."""
    for sidecar in directory.glob("*.pth.json"):
        if not sidecar.with_suffix("").exists():
            sidecar.unlink(missing_ok=True)


def _plain(
    value: object, where: str, left: Iterator[int], tensor_of: Callable[[torch.Tensor, str], torch.Tensor]
) -> Any:
    """A copy of ``value`` in plain containers and detached tensors; TypeError names the first value that is not plain.

    left: has an item for each value that may follow. Lists that hold the same ones again and again would never end.
    Types are compared exactly: numpy's float64 is a float to isinstance, but needs its class to be loaded.
    """
    if next(left, None) is None:
        raise TypeError(
            f"{where} is one value too many: a checkpoint of this size does not hold so many, unless "
            "they are the same ones again and again"
        )
    if type(value) in _SCALARS:
        return value
    if isinstance(value, torch.Tensor):
        return tensor_of(value, where)
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{where} has the key {key!r:.100} of type {type(key).__name__}; use str or int")
        return {key: _plain(item, f"{where}[{key!r:.100}]", left, tensor_of) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_plain(item, f"{where}[{index}]", left, tensor_of) for index, item in enumerate(value))
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, None, bool, "
        "int, float, str, and lists, tuples and dicts of these (convert with float(), int(), .tolist())"
    )


def _plain_tensor(value: torch.Tensor, where: str) -> torch.Tensor:
    """The tensor without its gradient; TypeError if it is of a kind that is not saved."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_meta:
        raise TypeError(f"{where} is a {type(value).__name__} ({value.layout}, {value.device}); use a dense tensor")
    return value.detach()


def _own_tensor(value: torch.Tensor, where: str) -> torch.Tensor:
    """As ``_plain_tensor``; a copy of a view, which would bring the whole of its storage into the file."""
    tensor = _plain_tensor(value, where)
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


class _HashingSink:
    """A file for ``torch.save`` that hashes the data and remembers why writing failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None
        self.flush = file.flush

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += len(data)
        return len(data)


def _write_payload(payload: Payload, file: BinaryIO) -> _Content:
    sink = _HashingSink(file)
    try:
        torch.save(payload, sink)  # type: ignore[arg-type]  # it writes and flushes, no more
    except RuntimeError as error:
        if sink.error is None:
            raise
        # torch reports a failed write as an inconsistency of its archive and hides the cause.
        raise sink.error from error
    return _Content(sink.size, sink.sha256.hexdigest())


def _current_content(path: Path) -> _Content | None:
    """The content of a checkpoint that is about to be replaced, or None if there is no good one."""
    try:
        with open(path, "rb", opener=atomic.opened) as file:
            return _verified(path, file)
    except (OSError, Unusable, CheckpointError):
        return None


def _verified(path: Path, file: BufferedReader) -> _Content:
    """Compare an open payload file with its sidecar; raises Unusable with the difference."""
    accepted = _read_sidecar(path)
    size = os.fstat(file.fileno()).st_size
    if all(size != content.size for content in accepted):
        raise Unusable(f"it has {size} bytes where its sidecar says {accepted[0].size}: truncated or overwritten")
    actual = _Content(size, hashlib.file_digest(file, "sha256").hexdigest())
    if actual not in accepted:
        raise Unusable("its sha256 is not the one in its sidecar: the content was damaged")
    return actual


def _read_sidecar(path: Path) -> list[_Content]:
    """The contents that the sidecar of ``path`` accepts, the newest first."""
    sidecar = sidecar_of(path)
    try:
        record = atomic.read_json(sidecar)
        # The version comes first: another format may lack the other fields.
        if (version := record["format_version"]) != FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has checkpoint format {version!r}, written by sfactory {record.get('sfactory')}; this is "
                f"sfactory {__version__}, which reads format {FORMAT_VERSION}. Use the version that wrote it, or start "
                "a new run with another --experiment. Nothing was deleted."
            )
        return [_Content(int(item["size"]), str(item["sha256"])) for item in (record, record["replaces"]) if item]
    except FileNotFoundError:
        raise Unusable(f"not committed: {sidecar.name} is missing") from None
    # Nested too deep, or a size of 1e999: damage may read as either.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Unusable(f"{sidecar.name} cannot be read: {error!r}") from error


def _check_archive(file: BufferedReader) -> None:
    """Raise Unusable, or what zipfile raises, unless the archive has the form that ``commit`` writes.

    A compressed record could unpack to more than the memory holds, and torch reads older formats with other loaders.
    A tuple that holds the same tuple twice, and so on, would take forever where torch makes it the key of a dict.
    """
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
                raise Unusable(f"its record {record.filename} is compressed, which sfactory never does")
            if record.filename.endswith("data.pkl"):
                _check_pickle(archive.read(record))


def _check_pickle(content: bytes) -> None:
    """Raise Unusable if a value stands for too many others, shared ones counted each time; nothing is unpickled."""
    most = _MOST_VALUES + len(content)
    stack: list[int] = []  # how many values each stands for; 0: a mark
    memo: dict[Any, int] = {}
    for code, argument, _ in pickletools.genops(content):
        if "PUT" in code.name:
            memo[argument] = stack[-1]
        elif "GET" in code.name:
            stack.append(memo[argument])
        elif code.name == "MARK":
            stack.append(0)
        else:
            count = 1
            for kind in reversed(code.stack_before):
                if kind is pickletools.stackslice:
                    while value := stack.pop():
                        count += value
                elif kind is not pickletools.markobject:  # which the slice has taken
                    count += stack.pop()
            if count > most:
                raise Unusable("its content is nested without an end")
            stack += [count] * len(code.stack_after)


def read(path: Path) -> Payload:
    """The verified payload of one checkpoint, on the CPU.

    Raises Unusable with the reason, and CheckpointError if it is of another format version.
    """
    try:
        with open(path, "rb", opener=atomic.opened) as file:
            size = _verified(path, file).size
            _check_archive(file)
            file.seek(0)
            payload = torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251 - it runs no code
    except (Unusable, CheckpointError):
        raise
    except Exception as error:
        # A hostile or damaged pickle can make the reader raise anything, and the search must continue.
        raise Unusable(f"it cannot be loaded safely: {named(error).splitlines()[0]}") from error
    if not isinstance(payload, dict):
        raise Unusable(f"it holds a {type(payload).__name__} where a dict is expected")
    try:
        # A value takes at least one byte.
        return _plain(payload, "payload", iter(range(min(size, _MOST_VALUES))), _plain_tensor)  # type: ignore[no-any-return]
    except TypeError as error:
        raise Unusable(str(error)) from error
    except RecursionError as error:
        raise Unusable("its content is nested without an end") from error


def packed(payload: Payload) -> bytes:
    """A payload for another process of the run: the content of a file."""
    file = io.BytesIO()
    torch.save(_plain(payload, "payload", iter(range(_MOST_VALUES)), _own_tensor), file)
    return file.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    """What ``packed`` was given, on the CPU."""
    payload: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)  # noqa: TID251
    return payload
