"""A checkpoint that is renamed is whole under one of its two names, whenever its process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.checkpoint_file import read, sidecar_of
from sfactory.errors import CannotSaveError
from tests.support.source import ROOT

# Dies by SIGKILL before the given one of the steps by which the disk is changed.
KILLED_MOVE = """
    import os, signal, sys
    from pathlib import Path
    from sfactory.checkpoint_file import move

    steps = 0

    def counted(real):
        def call(*args, **kwargs):
            global steps
            steps += 1
            if steps == int(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        return call

    os.replace, os.unlink = counted(os.replace), counted(os.unlink)
    move(Path(sys.argv[1]), Path(sys.argv[2]))
"""
STEPS = 3  # the sidecar under its new name, the payload under its own, the old sidecar


def payload(value: float) -> dict[str, object]:
    return {"w": torch.full((4,), value)}


def value_of(path: Path) -> float:
    return float(read(path)["w"][0])


def killed_move(path: Path, to: Path, step: int) -> int:
    """Exit code of a process that moves a checkpoint and is killed before that step."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED_MOVE), str(path), str(to), str(step)]
    return subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode


def test_a_moved_checkpoint_leaves_nothing_under_its_old_name(tmp_path: Path) -> None:
    path = CheckpointDir(tmp_path, keep=1).save(payload(1.0), 1, 100)
    to = tmp_path / f"set_aside_{path.name}"

    # It has no step after the last, at which it could be killed.
    assert killed_move(path, to, STEPS + 1) == 0

    assert value_of(to) == 1.0
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [to.name, sidecar_of(to).name]


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_kill_while_a_checkpoint_is_renamed_leaves_it_whole_under_one_name(tmp_path: Path, step: int) -> None:
    path = CheckpointDir(tmp_path, keep=1).save(payload(9.0), 9, 900)
    to = tmp_path / f"set_aside_{path.name}"

    code = killed_move(path, to, step)

    assert code == -signal.SIGKILL
    (payload_file,) = tmp_path.glob("*.pth")
    assert payload_file == (to if step == STEPS else path)
    assert value_of(payload_file) == 9.0

    # What is left beside it does not keep the next session from setting it aside, and is gone then.
    directory = CheckpointDir(tmp_path, keep=1)
    directory.tidy()
    directory.save(payload(5.0), 5, 500)

    assert {file.name: value_of(file) for file in tmp_path.glob("*.pth")} == {
        "checkpoint_000000005_500.pth": 5.0,
        "set_aside_checkpoint_000000009_900.pth": 9.0,
    }
    assert len(list(tmp_path.iterdir())) == 4


def test_a_checkpoint_that_cannot_be_renamed_is_not_written_over(
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
            raise OSError(13, "Permission denied")
        real(source, target)

    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", refuse)
        with pytest.raises(CannotSaveError, match="could not be renamed"):
            directory.save(payload(3.0), 2, 200)

    assert (value_of(old), value_of(newest)) == (1.0, 2.0)

    directory.save(payload(3.0), 2, 200)

    assert value_of(newest) == 3.0
    assert value_of(tmp_path / f"set_aside_{newest.name}") == 2.0
