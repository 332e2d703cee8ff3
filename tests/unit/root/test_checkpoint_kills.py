"""A kill, a full disk or a refused rename at any moment leaves every checkpoint whole under one name."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.checkpoint.file import move, read, sidecar_of
from sfactory.errors import CannotSaveError

# Changes of the disk by a move: the sidecar under its new name, the payload under its own, the old sidecar removed.
CHANGES_OF_A_MOVE = 3


def payload(value: float) -> dict[str, object]:
    return {"w": torch.full((4,), value), "big": {str(i): torch.ones(100, 100) for i in range(20)}}


def value_of(path: Path) -> float:
    return float(read(path)["w"][0])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def exit_code_of(action: Callable[[], object]) -> int:
    """The exit code of a forked process that runs ``action``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads, of which the child needs none
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        action()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def killed_before(change: int, action: Callable[[], object]) -> int:
    """The exit code of a process that runs ``action`` and is killed before that change of the disk."""
    changes = itertools.count(1)

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if next(changes) == change:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    def run() -> None:
        os.replace, os.unlink = counted(os.replace), counted(os.unlink)  # type: ignore[assignment]
        action()

    return exit_code_of(run)


@pytest.mark.parametrize("rename", [1, 2])
@pytest.mark.parametrize("step", [1, 2], ids=["same name", "new name"])
def test_a_kill_before_any_rename_leaves_the_old_one_and_its_leftovers_are_removed(
    tmp_path: Path, rename: int, step: int
) -> None:
    directory = CheckpointDir(tmp_path, keep=2)
    old = directory.save(payload(1.0), 1, 100)
    save = partial(directory.save, payload(2.0), step, step * 100)

    assert killed_before(rename, save) == -signal.SIGKILL
    assert any(name.startswith(".tmp-") for name in names(tmp_path))
    directory.tidy()

    assert not any(name.startswith(".tmp-") for name in names(tmp_path))
    loaded = directory.load()
    assert loaded is not None
    assert (loaded.path, float(loaded.payload["w"][0])) == (old, 1.0)
    assert value_of(save()) == 2.0
    assert len(names(tmp_path)) == 2 * step


def test_a_full_disk_leaves_the_old_checkpoint_and_a_later_save_succeeds(tmp_path: Path) -> None:
    directory = CheckpointDir(tmp_path, keep=2)
    old = directory.save(payload(1.0), 1, 100)

    def fill_the_disk() -> None:
        for limit in (0, 10, 1_000, 100_000, 800_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with pytest.raises(CannotSaveError):
                directory.save(payload(2.0), 2, 200)
            assert names(tmp_path) == [old.name, sidecar_of(old).name]

    assert exit_code_of(fill_the_disk) == 0
    assert value_of(old) == 1.0
    assert value_of(directory.save(payload(2.0), 2, 200)) == 2.0


@pytest.mark.parametrize("change", range(1, CHANGES_OF_A_MOVE + 2))
def test_a_kill_while_a_checkpoint_is_renamed_leaves_it_whole_under_one_name(tmp_path: Path, change: int) -> None:
    path = CheckpointDir(tmp_path, keep=1).save(payload(9.0), 9, 900)
    to = tmp_path / f"set_aside_{path.name}"

    code = killed_before(change, partial(move, path, to))

    assert code == (-signal.SIGKILL if change <= CHANGES_OF_A_MOVE else 0)
    (payload_file,) = tmp_path.glob("*.pth")
    assert payload_file == (to if change >= CHANGES_OF_A_MOVE else path)
    assert value_of(payload_file) == 9.0

    # A leftover sidecar does not stop the next session from renaming it, and is then gone.
    directory = CheckpointDir(tmp_path, keep=1)
    directory.tidy()
    directory.save(payload(5.0), 5, 500)

    assert {file.name: value_of(file) for file in tmp_path.glob("*.pth")} == {
        "checkpoint_000000005_500.pth": 5.0,
        "set_aside_checkpoint_000000009_900.pth": 9.0,
    }
    assert len(names(tmp_path)) == 4


def test_a_checkpoint_that_cannot_be_renamed_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CheckpointDir(tmp_path, keep=2)
    old = directory.save_best(payload(1.0), 1, 100, metric=1.0)
    newest = directory.save(payload(2.0), 2, 200)
    loaded = directory.load("best")
    assert loaded is not None
    directory.resume_from(loaded, "best")
    real = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(source) == newest:
            raise PermissionError
        real(source, target)

    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", refuse)
        with pytest.raises(CannotSaveError, match="could not be renamed"):
            directory.save(payload(3.0), 2, 200)

    assert (value_of(old), value_of(newest)) == (1.0, 2.0)
    directory.save(payload(3.0), 2, 200)
    assert value_of(newest) == 3.0
    assert value_of(tmp_path / f"set_aside_{newest.name}") == 2.0
