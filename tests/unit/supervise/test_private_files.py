"""What a run has outside its own folder is for its owner alone, and gone when it is."""

from __future__ import annotations

import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfactory import atomic
from sfactory.errors import ExitCode
from sfactory.process.watcher import remove_sockets
from tests.support.trainer import RunTrainer


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files. Its path is short, since those of sockets may have no more than 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def ours(temporary: Path) -> list[Path]:
    """What lies there, but for the folder that torch makes for code that it has compiled: here it compiles nothing."""
    return [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


@pytest.mark.faults
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_runs_temporary_files_are_its_owners_alone_and_go_with_it(
    run_trainer: RunTrainer, temporary: Path, end: signal.Signals
) -> None:
    run = run_trainer(train_for_env_steps=1_000_000_000)
    run.wait_until_training()

    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in ours(temporary)}
    run.signal_main(end)

    assert run.wait() == (ExitCode.SIGINT if end == signal.SIGINT else -end)
    assert modes, "where is the fork server's socket?"
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    run.assert_clean()
    assert ours(temporary) == []
    assert [path for path in temporary.rglob("*") if path.is_file()] == []


def test_a_temporary_file_takes_no_name_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 2 * count)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    with atomic.replacing(tmp_path / "x") as file:
        name = Path(file.name) if isinstance(file.name, str) else next(tmp_path.glob(".tmp-*"))
    name.symlink_to(mine)

    with pytest.raises(FileExistsError):
        atomic.write_text(tmp_path / "y", "yours")

    assert mine.read_text() == "mine"


def test_only_sockets_are_removed_with_the_fork_servers_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "mine").write_text("mine")

    remove_sockets(str(folder))

    assert sorted(entry.name for entry in folder.iterdir()) == ["inner", "mine"]
