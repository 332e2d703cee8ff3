"""Files are whole or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from sfactory import atomic


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "data.bin"
    target.write_bytes(b"old")

    with pytest.raises(RuntimeError, match="half way"), atomic.replacing(target) as file:  # noqa: PT012
        file.write(b"new")
        raise RuntimeError("half way")
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(target, {"fps": float("nan")})

    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]

    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(FileNotFoundError), atomic.replacing(folder / "replay.mp4"):
        folder = folder.rename(tmp_path / "renamed")
    assert list(folder.iterdir()) == []


def test_a_temporary_file_is_stale_only_when_its_writer_is_gone_and_links_are_not_followed(tmp_path: Path) -> None:
    target, leftover = tmp_path / "data.bin", tmp_path / ".tmp-1-dead"
    leftover.write_bytes(b"half")
    (tmp_path / ".tmp-1-link").symlink_to(target)

    with atomic.replacing(target) as file:
        file.write(b"in progress")
        removed = atomic.remove_stale(tmp_path)

    assert removed == [leftover]
    assert target.read_bytes() == b"in progress"
    assert atomic.remove_stale(tmp_path) == atomic.remove_stale(tmp_path / "absent") == []


def test_content_is_on_the_disk_before_the_file_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def recorded(*args: object, name: str = name, real: Callable[..., object] = real) -> object:
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(os, name, recorded)

    atomic.write_bytes(tmp_path / "data.bin", b"new")

    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize(("code", "fails"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_file_is_written_where_the_file_system_brings_no_directories_to_the_disk(
    code: int, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="error") if fails else contextlib.nullcontext():
        atomic.write_bytes(tmp_path / "data.bin", b"new")

    assert (tmp_path / "data.bin").read_bytes() == b"new"
