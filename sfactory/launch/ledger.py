"""Room: what a launcher has done so far. In: starts and ends of runs. Out: ``launch.json`` in their common folder.

One launcher at a time owns the folder. Whether a run is done is for the run's own record to say (``Job.done``); the
ledger tells how often it was started, how it ended, and why it failed, also of runs that never had a directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from sfactory import atomic
from sfactory.errors import RunDirError
from sfactory.runtime.facts import local_time

NAME = "launch.json"
LOCK_NAME = ".launch.lock"
FORMAT_VERSION = 1

Status = Literal["waiting", "running", "done", "interrupted", "failed"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """What is known of one run. starts: of its process, by launchers. exit_code: of the last one, minus its signal."""

    status: Status = "waiting"
    starts: int = 0
    exit_code: int | None = None
    cause: str = ""
    started: str = ""
    ended: str = ""

    @staticmethod
    def of(values: Mapping[str, Any]) -> Entry:
        """The entry that ``dataclasses.asdict`` gave ``values`` of; raises TypeError or ValueError if it is none."""
        entry = Entry(**values)
        if entry.status not in get_args(Status) or not isinstance(entry.starts, int):
            raise ValueError(f"{values!r} is no entry")
        # Whoever started it is dead, or the folder would be locked, and no run outlives its launcher.
        return dataclasses.replace(entry, status="interrupted") if entry.status == "running" else entry


class Ledger:
    """The entries by name of the run. Use ``opened``."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self._path = path
        self._entries = dict(entries)
        self._warned = False

    @staticmethod
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Ledger]:
        """The ledger of ``folder``, which is made if need be, and is this launcher's until the block ends.

        Raises RunDirError if another launcher has it, or it cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise RunDirError(f"{folder} cannot be used: {error}; check --train_dir and its permissions") from error
        try:
            _take(lock, folder)
            yield Ledger(folder / NAME, _read(folder / NAME))
        finally:
            os.close(lock)

    def entry(self, name: str) -> Entry:
        """What is known of a run; that it waits, if nothing is."""
        return self._entries.get(name, Entry())

    def started(self, name: str) -> None:
        """Its process has been started."""
        starts = self.entry(name).starts + 1
        self._put(name, Entry("running", starts, started=local_time()))

    def ended(self, name: str, status: Status, exit_code: int | None, cause: str = "") -> None:
        """Its process has ended, or could not be started."""
        entry = dataclasses.replace(self.entry(name), status=status, exit_code=exit_code, cause=cause)
        self._put(name, dataclasses.replace(entry, ended=local_time()))

    def _put(self, name: str, entry: Entry) -> None:
        """Write it down; what cannot be written is a warning, for the runs have records of their own."""
        self._entries[name] = entry
        runs = {known: dataclasses.asdict(value) for known, value in self._entries.items()}
        try:
            atomic.write_json(self._path, {"format_version": FORMAT_VERSION, "runs": runs})
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("%s cannot be written: %s; the runs go on", self._path, error)


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 64, 0).decode(errors="replace").strip() or "just starting"
        raise RunDirError(
            f"{folder} is in use by another launcher ({holder}). Wait for it or stop it, or choose another run_name."
        ) from None
    except OSError as error:
        raise RunDirError(f"{folder} cannot be used: {error}; the file system must support file locks") from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()}".encode(), 0)


def _read(path: Path) -> dict[str, Entry]:
    """The entries of a file; one that cannot be read is kept under another name, and there are none."""
    try:
        content = json.loads(path.read_bytes())
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format_version is {content['format_version']!r}, not {FORMAT_VERSION}")
        return {str(name): Entry.of(values) for name, values in content["runs"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        aside = path.with_name(f"{path.name}.unreadable")
        _log.warning("%s cannot be read (%r); it is kept as %s, and begun anew", path, error, aside.name)
        with contextlib.suppress(OSError):
            path.replace(aside)
        return {}
