"""Room: the folder of one experiment. In: train_dir and a checked experiment name. Out: paths, a lock, run.json.

One run at a time owns the folder. The lock is the kernel's and goes with the process that holds it, however
it ends, so there is never a stale one to remove by hand. Nothing here imports torch.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from sfactory import __version__, atomic
from sfactory.errors import RunDirError

Status = Literal["running", "done", "interrupted", "failed"]

_GIT_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)


class RunDir:
    """An experiment's folder, held by this process until ``close``; a context manager."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        """Use ``RunDir.open``."""
        self.path = path
        self._lock_fd: int | None = lock_fd
        self._facts: dict[str, object] = {}

    @classmethod
    def open(cls, train_dir: Path | str, experiment: str) -> RunDir:
        """Create the folder if need be and lock it.

        Raises:
            RunDirError: another run holds it (the text names its process and host), or it cannot be made.
        """
        path = Path(train_dir) / experiment
        try:
            path.mkdir(parents=True, exist_ok=True)
            return cls(path, _locked(path / ".lock"))
        except OSError as error:
            raise RunDirError(
                f"the run directory {path} cannot be used: {error}. Check --train_dir and its permissions; the file "
                "system must support file locks."
            ) from error

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the lock. The lock file stays: removing it would race with whoever opens it next."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    @property
    def config_path(self) -> Path:
        """The run's configuration."""
        return self.path / "config.json"

    @property
    def run_json(self) -> Path:
        """What was run, with which versions, and how it ended."""
        return self.path / "run.json"

    @property
    def metrics_path(self) -> Path:
        """Rows of metrics."""
        return self.path / "metrics.jsonl"

    @property
    def summary_path(self) -> Path:
        """The result, written at every exit."""
        return self.path / "summary.json"

    @property
    def log_path(self) -> Path:
        """Everything that went to the terminal."""
        return self.path / "sf_log.txt"

    def checkpoint_dir(self, policy: int) -> Path:
        """Where the checkpoints of one policy go."""
        return self.path / f"checkpoint_p{policy}"

    def write_run_json(self, status: Status, *, argv: Sequence[str], seed: int | None) -> None:
        """Record this session under ``status``: its facts on top, and those of every session in ``sessions``.

        Called at the start and at the end of a session. A record that cannot be written is a warning: it is
        not worth a run.
        """
        if not self._facts:
            self._facts = _facts(argv, seed)
        earlier = [item for item in self._sessions() if item.get("id") != self._facts["id"]]
        session = {**self._facts, "status": status, "updated": _now()}
        try:
            atomic.write_json(self.run_json, {**session, "sessions": [*earlier, session]})
        except OSError as error:
            _log.warning("%s could not be written: %s", self.run_json, error)

    def _sessions(self) -> list[dict[str, Any]]:
        """Sessions recorded so far; a record that cannot be read is kept under another name."""
        try:
            sessions = json.loads(self.run_json.read_bytes())["sessions"]
            return [dict(session) for session in sessions]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            aside = self.run_json.with_name("run.json.unreadable")
            _log.warning("%s cannot be read (%r); kept as %s", self.run_json, error, aside.name)
            self.run_json.replace(aside)
            return []


def _locked(path: Path) -> int:
    """Open and lock ``path``; the descriptor is closed on exec, so that no child keeps the lock alive."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirError(
                f"{path.parent} is in use by {_holder(fd)}. Wait for that run or stop it, "
                "or choose another --experiment."
            ) from None
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": _now()}
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(owner).encode(), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _holder(fd: int) -> str:
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
        return f"process {owner['pid']} on host {owner['host']} (started {owner['started']})"
    except (ValueError, KeyError, TypeError):
        # The holder locks first and then writes who it is.
        return "another process that is just starting"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _facts(argv: Sequence[str], seed: int | None) -> dict[str, object]:
    """What is known of a session at its start. Environment variables stay out: they hold secrets."""
    return {
        "id": secrets.token_hex(8),
        "started": _now(),
        "argv": list(argv),
        "seed": seed,
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "git_commit": _git_commit(),
        "versions": {
            "python": sys.version.split()[0],
            "sfactory": __version__,
            **{name: _version(name) for name in ("torch", "numpy", "gymnasium")},
        },
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git_commit() -> str | None:
    """The commit checked out where the command was started, if that is a git checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
