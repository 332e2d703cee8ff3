"""Owns the folder of one experiment: its paths, its lock and run.json. It does not import torch.

The kernel drops the lock with the process, so a stale lock never has to be removed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import shlex
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from sfactory import atomic
from sfactory.config.saved_config import LOG_NAME, METRICS_NAME, RUN_NAME, SUMMARY_NAME, checkpoint_folder
from sfactory.errors import CannotSaveError, Refused, RunDirError
from sfactory.experiment.provenance import WorkingTree, local_time, session_facts
from sfactory.process.signals import signals_held_back
from sfactory.system.operating_system import LINUX, close_lock, lock, open_flags

Status = Literal["running", "done", "interrupted", "failed"]

LOCK_NAME = ".lock"
_NUMBERS = re.compile(r"(?:checkpoint|best)_\d+_(\d+)")  # in the name of a checkpoint: train steps and env steps

_log = logging.getLogger(__name__)


class RunDir:
    """An experiment's folder, owned by this process until ``close``; a context manager.

    run_json: the sessions. summary_path: the result, written at every exit. log_path: a copy of the terminal's output.
    """

    def __init__(self, path: Path, lock_fd: int, created: Sequence[Path] = ()) -> None:
        """Use ``RunDir.open``. created: the folders that it made, the innermost first."""
        self.path = path
        self.run_json = path / RUN_NAME
        self.summary_path = path / SUMMARY_NAME
        self.log_path = path / LOG_NAME
        self._lock_fd: int | None = lock_fd
        self._facts: dict[str, object] = {}
        self._created = created

    @classmethod
    def open(cls, train_dir: Path | str, experiment: str) -> RunDir:
        """Create the folder if it does not exist, and lock it.

        Raises RunDirError if another run holds it (the text names its process and host), or it cannot be made.
        """
        created: list[Path] = []
        try:
            # Absolute, as an env of serial mode may change the current directory.
            path = (Path(train_dir) / experiment).absolute()
            created = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
            lock_fd = _locked(path / LOCK_NAME)
            atomic.remove_stale(path)  # a killed main may have left one, and so may a killed enjoy with its video
            return cls(path, lock_fd, created)
        except OSError as error:
            _remove_what_is_new(created)
            raise RunDirError(
                f"the run directory {Path(train_dir) / experiment} cannot be used: {error}. Check --train_dir and its "
                "permissions; the file system must support file locks."
            ) from error

    @classmethod
    def unlocked(cls, train_dir: Path | str, experiment: str) -> RunDir:
        """The folder of a run that another process owns, to read its checkpoints; it may not exist."""
        return cls((Path(train_dir) / experiment).absolute(), -1)

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Refused) and not self.lost:
            _remove_what_is_new(self._created)
        self.close()

    def close(self) -> None:
        """Release the lock. The lock file stays: removing it would race with the next process that opens it."""
        if self._lock_fd is not None:
            close_lock(self._lock_fd)
            self._lock_fd = None

    def move_to(self, target: Path) -> None:
        """Rename the folder to ``target``, which does not exist, and own a new, empty one of the old name instead.

        The old lock is kept until the new one is taken. Signals are held back, so a run never stays without its folder.
        Raises RunDirError if it cannot be renamed, or another run took the name before the new folder was locked.
        """
        assert self._lock_fd is not None
        with signals_held_back():
            try:
                os.rename(self.path, target)
                self.path.mkdir(exist_ok=True)
                new_lock = _locked(self.path / LOCK_NAME)
                atomic.fsync_dir(self.path.parent)
            except OSError as error:
                where = target if target.exists() else self.path
                raise RunDirError(
                    f"the run directory {self.path} could not be moved to {target}: {error}. The earlier run is in "
                    f"{where}; check the permissions of --train_dir, or choose another --experiment."
                ) from error
            close_lock(self._lock_fd)
            self._lock_fd = new_lock

    def put_back(self, earlier: Path, aside: Path) -> None:
        """Rename the folder to ``aside``, which does not exist, and own ``earlier`` under the old name instead.

        ``aside`` is removed if it holds nothing but its lock and its log. Raises RunDirError if that is not possible,
        as where another run uses ``earlier``; then it is still there.
        """
        assert self._lock_fd is not None
        advice = "It stays there; resume it under that name."
        with signals_held_back():
            try:
                new_lock = lock_file(earlier / LOCK_NAME, advice)
                try:
                    os.rename(self.path, aside)
                    try:
                        os.rename(earlier, self.path)
                    except OSError:
                        os.rename(aside, self.path)
                        raise
                except BaseException:
                    close_lock(new_lock)
                    raise
                atomic.fsync_dir(self.path.parent)
            except OSError as error:
                raise RunDirError(f"{earlier} could not be renamed to {self.path} again: {error}. {advice}") from error
            close_lock(self._lock_fd)
            self._lock_fd = new_lock
        with contextlib.suppress(OSError):
            _remove_without_content(aside)

    @property
    def lost(self) -> bool:
        """Whether the folder was renamed or removed, so that another run may have its name."""
        assert self._lock_fd is not None
        try:
            return not _is_at(self._lock_fd, self.path / LOCK_NAME)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # storage that fails for a while
            return False

    def require_held(self) -> None:
        """Raise CannotSaveError, which says where the folder is now, if it is lost."""
        if not self.lost:
            return
        lock = Path(f"/proc/self/fd/{self._lock_fd}").resolve()  # ends with " (deleted)" if it was removed
        advice = "nothing more is saved"
        happened = f"was removed{'' if LINUX else ' or renamed'} under the run (or {LOCK_NAME} in it)"
        if lock.name == LOCK_NAME:
            happened = f"was renamed to {lock.parent} under the run"
            place = f"--train_dir={lock.parent.parent}", f"--experiment={lock.parent.name}"
            advice += f"; resume it there with {shlex.join(place)}"
        raise CannotSaveError(f"the run directory {self.path} {happened}; {advice}")

    def checkpoint_dir(self, policy: int) -> Path:
        """The folder of one policy's checkpoints."""
        return checkpoint_folder(self.path, policy)

    @property
    def is_done(self) -> bool:
        """Whether run.json says that the run is done."""
        return not self.lost and self._record()[0].get("status") == "done"

    def write_run_json(self, status: Status, *, argv: Sequence[str], seed: int | None, idle: bool = False) -> None:
        """Record this session under ``status``: its facts at the top, and those of all sessions in ``sessions``.

        idle: it trains nothing. Then the facts at the top stay, and a run that is done stays so.
        Called at the start and at the end of a session. If it cannot be written, only a warning is logged. A folder
        that is lost is left alone.
        """
        if self.lost:
            return
        top, sessions = self._record()
        if not self._facts:
            self._facts = session_facts(argv, seed)
            tree = WorkingTree.of_current_directory(leave_out=self.path.parent)
            self._facts |= tree.facts | {"git_diff": self._keep_diff(tree.diff, first=not sessions)}
        earlier = [item for item in sessions if item.get("id") != self._facts["id"]]
        session = {**self._facts, "status": status, "updated": local_time()}
        if idle and top:
            top["status"] = "done" if top.get("status") == "done" else status
        else:
            top = session
        try:
            atomic.write_json(self.run_json, {**top, "sessions": [*earlier, session]})
        except OSError as error:
            _log.warning("%s could not be written: %s", self.run_json, error)

    def _keep_diff(self, diff: bytes | None, first: bool) -> str | None:
        """Write the working tree's changes unless a file holds the same; returns the name of the file."""
        if not diff:
            return None
        try:
            for path in sorted(self.path.glob("git*.diff")):
                if atomic.read_bytes(path) == diff:
                    return path.name
            name = "git.diff" if first else f"git_{self._facts['id']}.diff"
            atomic.write_bytes(self.path / name, diff)
        except OSError as error:
            _log.warning("the working tree's changes could not be kept in %s: %s", self.path, error)
            return None
        return name

    def _record(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The facts at the top of run.json, and the sessions; one that cannot be read is renamed."""
        try:
            record = dict(atomic.read_json(self.run_json))
            return record, [dict(session) for session in record.pop("sessions")]
        except FileNotFoundError:
            return {}, []
        except (OSError, ValueError, KeyError, TypeError) as error:
            keep_unreadable(self.run_json, error)
            return {}, []


def _remove_what_is_new(created: Sequence[Path]) -> None:
    """Remove the folders that ``RunDir.open`` made, unless they hold more than the lock and the log of this start."""
    with contextlib.suppress(OSError):  # it is empty, and may stay
        if created and _remove_without_content(created[0]):
            for folder in created[1:]:
                folder.rmdir()


def _remove_without_content(folder: Path) -> bool:
    """Remove the folder of a run if it holds nothing but a lock and a log; returns whether it was. Raises OSError."""
    files = [folder / LOG_NAME, folder / LOCK_NAME]
    if not set(folder.iterdir()) <= set(files):
        return False
    for file in files:  # the lock last
        file.unlink(missing_ok=True)
    folder.rmdir()
    return True


def trained_checkpoints(run_dir: Path) -> set[str]:
    """Checkpoints of all policies and kinds with steps in them, by folder and numbers; nothing is loaded.

    One that was put aside stays the same.
    """
    found = {path: _NUMBERS.search(path.name) for path in run_dir.glob("checkpoint_p*/**/*.pth")}
    return {str(path.with_name(numbers[0])) for path, numbers in found.items() if numbers and int(numbers[1])}


def saved_env_steps(run_dir: Path) -> int:
    """Env steps of the run in the newest checkpoints of all policies; nothing is loaded. 0 if there are none.

    Each counts once, as sidecars say. Those of older versions do not: then a policy counts all in which it took part.
    """
    newest: dict[Path, tuple[int, Path]] = {}
    for path in run_dir.glob("checkpoint_p*/checkpoint_*_*.pth"):
        steps = path.stem.rpartition("_")[2]
        found = int(steps) if steps.isdecimal() else 0, path
        newest[path.parent] = max(newest.get(path.parent, found), found)
    return sum(_counted_env_steps(path, steps) for steps, path in newest.values())


def _counted_env_steps(checkpoint: Path, steps: int) -> int:
    """Env steps that the policy of a checkpoint counts for its run; ``steps``, in which it took part, if unknown."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
        return int(atomic.read_json(checkpoint.with_name(f"{checkpoint.name}.json"))["run_env_steps"])
    return steps


def shown_env_steps(run_dir: Path) -> int:
    """Env steps of the newest row of metrics.jsonl; 0 if there is none. A kill may have cut off its last line."""
    with contextlib.suppress(OSError):
        for line in reversed(atomic.read_bytes(run_dir / METRICS_NAME, last=1 << 20).splitlines()):
            with contextlib.suppress(ValueError, LookupError, TypeError, OverflowError):
                return int(atomic.parse_json(line)["env_steps"])
    return 0


def numbered(path: Path) -> Iterator[Path]:
    """``path``, and then it with 0001, 0002 and so on behind its name."""
    yield path
    for number in itertools.count(1):
        yield path.with_name(f"{path.name}{number:04d}")


def keep_unreadable(path: Path, error: Exception) -> None:
    """Rename a file that cannot be read, so that a new one can be written. Raises OSError if that fails."""
    renamed = next(name for name in numbered(path.with_name(f"{path.name}.unreadable")) if not os.path.lexists(name))
    path.rename(renamed)
    _log.warning("%s cannot be read (%r); it is kept as %s", path, error, renamed.name)


def _locked(path: Path) -> int:
    while True:
        fd = lock_file(path, "Wait for that run or stop it, or choose another --experiment.")
        # The folder may have been renamed between opening and locking; then this lock belongs to the renamed run.
        with contextlib.suppress(FileNotFoundError):
            if _is_at(fd, path):
                return fd
        close_lock(fd)


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is the one at ``path``; raises OSError."""
    return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))


def lock_file(path: Path, advice: str) -> int:
    """Open and lock ``path``; the descriptor is closed on exec, so that no child keeps the lock alive.

    Raises RunDirError, which ends with ``advice``, if another process holds the lock, and OSError.
    """
    fd = atomic.opened(path, os.O_RDWR | os.O_CREAT | open_flags("O_NOFOLLOW"))
    try:
        try:
            lock(fd)
        except BlockingIOError:
            raise RunDirError(f"{path.parent} is in use by {_holder(fd)}. {advice}") from None
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": local_time()}
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps(owner).encode())
    except BaseException:
        close_lock(fd)
        raise
    return fd


def is_held(run_dir: Path) -> bool:
    """Whether a process has the lock of a run, or it cannot be found out. Nothing is written."""
    try:
        fd = atomic.opened(run_dir / LOCK_NAME, os.O_RDONLY | open_flags("O_NOFOLLOW"))
    except OSError:
        return True
    try:
        lock(fd)
    except OSError:
        return True
    finally:
        close_lock(fd)
    return False


def _holder(fd: int) -> str:
    try:
        owner = json.loads(os.read(fd, 4096))
        return f"process {owner['pid']} on host {owner['host']} (started {owner['started']})"
    except (ValueError, KeyError, TypeError):
        # The holder locks first and then writes its identity.
        return "another process that is just starting"
