"""Writes files that are either whole or absent, and reads files that others may have changed.

A file is written under a temporary name in its own directory, flushed to the disk, and renamed over the
final name; a crash at any moment leaves the old content or the new, never a mixture. Temporary files are
called ``.tmp-<pid>-<random>`` and are locked by their writer while it lives, so that what a killed writer
left behind differs from work in progress even where process ids are reused (containers).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sfactory.system.operating_system import POSIX, lock, open_flags

TMP_PREFIX = ".tmp-"
MOST_DEPTH = 100  # of brackets in a JSON file: Python reads and writes deeper ones by chance only
_CHUNK_BYTES = 1 << 16
_NOT_FOR_DIRECTORIES = (errno.EINVAL, errno.ENOTSUP)  # from fsync: the file system does that for files alone


def opened(path: Path | str, flags: int, dir_fd: int | None = None) -> int:
    """Open a regular file; for ``open(..., opener=opened)``, too. dir_fd: as in ``os.open``.

    Raises OSError at once for all else: a FIFO would wait for its other end, and a device may have no end.
    """
    fd = os.open(path, flags | open_flags("O_NONBLOCK", "O_CLOEXEC"), 0o666, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return fd


def open_log(path: Path) -> int:
    """Open a text file that lines are appended to by ``append_line``; raises OSError as ``opened``."""
    return opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def append_line(fd: int, text: str) -> None:
    """Append a line, or several, to a log of ``open_log``, as ``append_whole``."""
    append_whole(fd, f"{text}\n".encode(errors="replace"))


def read_bytes(path: Path | str, last: int | None = None) -> bytes:
    """The content of a regular file, or its ``last`` bytes; raises OSError for all else, at once."""
    with open(path, "rb", opener=opened) as file:
        if last is not None:
            file.seek(max(0, os.fstat(file.fileno()).st_size - last))
        return file.read()


def read_json(path: Path) -> Any:
    """The content of a JSON file; raises OSError and ValueError."""
    return parse_json(read_bytes(path))


def parse_json(text: str | bytes, most_depth: int = MOST_DEPTH, **hooks: Any) -> Any:
    """JSON data; raises ValueError, also for brackets more than ``most_depth`` deep. hooks: of ``json.loads``."""
    too_deep = ValueError(f"more than {most_depth} brackets deep")
    try:
        data = json.loads(text, **hooks)
    except RecursionError:
        raise too_deep from None
    depth, level = 0, [data]
    while level := [each for each in level if isinstance(each, dict | list)]:
        if depth == most_depth:
            raise too_deep
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return data


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` when the block ends without an exception.

    On return the new content and its name are on the disk. If the block or the writing fails, the
    temporary file is removed, ``path`` is as it was, and the exception passes on (OSError for a full disk).
    """
    tmp = path.parent / f"{TMP_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | open_flags("O_NOFOLLOW", "O_CLOEXEC")
    with opened_folder(path.parent) as folder:
        fd = os.open(tmp, flags, 0o666)
        try:
            with os.fdopen(fd, "wb") as file:
                # Marks the file as in use for remove_stale; a file system without locks only loses the clean-up.
                with contextlib.suppress(OSError):
                    lock(fd)
                yield file
                file.flush()
                os.fsync(fd)
                if POSIX:  # renamed while still locked, so that no other process takes the finished file for a leftover
                    os.replace(tmp, path)
            if not POSIX:  # Windows renames no open file
                os.replace(tmp, path)
        except BaseException:
            with contextlib.suppress(OSError):  # where the folder is now: it may have been renamed
                os.unlink(tmp if folder is None else tmp.name, dir_fd=folder)
            raise
        _fsync_folder(folder)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by a file that holds ``data``. Raises OSError; then ``path`` is as it was."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by a UTF-8 file that holds ``text``. Raises OSError; then ``path`` is as it was."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Replace ``path`` by a readable JSON file. Raises ValueError for NaN or infinity, which JSON has not."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def append_whole(fd: int, record: bytes, sync: bool = False) -> None:
    """Append ``record`` to a file opened with O_APPEND, completely or not at all. Raises OSError.

    sync: bring it to the disk.
    """
    size, rest = os.fstat(fd).st_size, memoryview(record)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
        if sync:
            os.fsync(fd)
    except OSError:
        # Half a record would corrupt the next one; truncating needs no space. Others may append to the file, too.
        with contextlib.suppress(OSError):
            if len(rest) < len(record):
                os.ftruncate(fd, size)
        raise


def cut_torn_line(fd: int) -> None:
    """Remove a last line without a newline, which a kill leaves. Raises OSError."""
    end = size = os.fstat(fd).st_size
    newline = -1
    while end and newline < 0:
        start = max(0, end - _CHUNK_BYTES)
        os.lseek(fd, start, os.SEEK_SET)
        newline = os.read(fd, end - start).rfind(b"\n")
        end = start + newline + 1
    if end < size:
        os.ftruncate(fd, end)


def fsync_dir(path: Path) -> None:
    """Bring renames and removals within a directory to the disk; Windows and some file systems have no call for that.

    Raises OSError, as for a disk that fails.
    """
    with opened_folder(path) as folder:
        _fsync_folder(folder)


def _fsync_folder(folder: int | None) -> None:
    try:
        if folder is not None:
            os.fsync(folder)
    except OSError as error:
        if error.errno not in _NOT_FOR_DIRECTORIES:
            raise


@contextlib.contextmanager
def opened_folder(path: Path) -> Iterator[int | None]:
    """A descriptor of a directory; None on Windows, which opens none. Raises OSError."""
    if not POSIX:
        yield None
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def remove_stale(directory: Path) -> list[Path]:
    """Remove and return temporary files that dead writers left. A missing directory has none."""
    return [path for path in sorted(directory.glob(f"{TMP_PREFIX}*")) if _removed_if_stale(path)]


def _removed_if_stale(path: Path) -> bool:
    # Whatever cannot be opened, locked or removed belongs to somebody else: it is left alone.
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | open_flags("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
        try:
            lock(fd)
        finally:
            os.close(fd)
        path.unlink()  # now, as Windows removes no open file
        return True
    return False
