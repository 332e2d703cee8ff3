"""Room: what the processes of a command take. In: a command line. Out: memory, files, threads, CPU time of each.

All of it is read from /proc. Processes are known by a mark in their environment, so that one whose parent has died is
found, too, and by their names: those of a run are called sf-main, sf-learner-0, sf-policy-0-0, sf-actor-0 and so on.

Three kinds of memory: resident (``rss_mb``) counts in full what a process shares with others, proportional
(``pss_mb``) counts a page that n processes share as an nth, so that it adds up over processes, and private
(``private_mb``) is what would be free if that process alone ended. Megabytes are 2^20 bytes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

SHM = Path("/dev/shm")
_MARK = "SFACTORY_RUN_ID"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.02
_END_S = 20.0
_TIDY_S = 2.0
# What Python's own helpers of a run are called here, by what stands in their command lines.
_UNNAMED = {"multiprocessing.forkserver": "fork server", "multiprocessing.resource_tracker": "resource tracker"}


@dataclass(frozen=True)
class Facts:
    """One process at one moment."""

    rss_mb: float
    pss_mb: float
    private_mb: float
    open_files: int
    threads: int
    cpu_s: float


def facts_of(pid: int, proc: Path = Path("/proc")) -> Facts | None:
    """What a process takes; None if there is none, or one that has ended and was not waited for."""
    folder = proc / str(pid)
    try:
        memory = rollup((folder / "smaps_rollup").read_text())
        # The name, in brackets, may hold anything; what follows the last bracket is numbered from 3 in proc(5).
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        open_files = len(os.listdir(folder / "fd"))
    except OSError:
        return None
    if "Rss" not in memory:
        return None
    return Facts(
        rss_mb=memory["Rss"],
        pss_mb=memory["Pss"],
        private_mb=round(memory["Private_Clean"] + memory["Private_Dirty"], 3),
        open_files=open_files,
        threads=int(fields[17]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
    )


def rollup(text: str) -> dict[str, float]:
    """Megabytes by name, from the text of a smaps_rollup."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0].rstrip(":"): round(int(row[1]) / 1024, 3) for row in rows if len(row) == 3 and row[2] == "kB"}


def total(processes: Mapping[str, Facts], field: str) -> float:
    """The sum of a field over processes."""
    return float(sum(getattr(facts, field) for facts in processes.values()))


def median_of(processes: Mapping[str, Facts], prefix: str, field: str) -> float | None:
    """The median of a field over processes whose names begin with ``prefix``; None if there are none."""
    values = [getattr(facts, field) for name, facts in processes.items() if name.startswith(prefix)]
    return float(statistics.median(values)) if values else None


def marked(mark: str) -> dict[int, str]:
    """Name by pid of all living processes that were started with ``mark`` in their environment."""
    sought = f"{_MARK}={mark}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while it is looked at
            if sought in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = _name(folder)
    return found


def _name(folder: Path) -> str:
    command = (folder / "cmdline").read_bytes().decode(errors="replace")
    name = (folder / "comm").read_text().strip()
    if name.startswith("sf-"):
        return name
    return next((known for part, known in _UNNAMED.items() if part in command), name)


def shm_names() -> frozenset[str]:
    """All names in /dev/shm."""
    return frozenset(entry.name for entry in SHM.iterdir())


def shm_left_since(before: frozenset[str]) -> list[str]:
    """Names that came into /dev/shm since ``before`` and that no living process has mapped: nobody will remove them."""
    new = shm_names() - before
    if not new:
        return []
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(errors="replace")
            mapped |= {name for name in new if f"{SHM}/{name}" in text}
    return sorted(new - mapped)


def shm_used_mb() -> float:
    """What /dev/shm holds, whoever has put it there."""
    state = os.statvfs(SHM)
    return round((state.f_blocks - state.f_bfree) * state.f_frsize / 2**20, 3)


class Command:
    """A command that runs in a session of its own. Leaving the block ends it, and every process that it started."""

    def __init__(self, argv: Sequence[str], folder: Path, cwd: Path | None = None) -> None:
        """Start it at once; ``folder`` takes its outputs. ``mark`` is what its processes are known by."""
        self.mark = uuid.uuid4().hex
        self._out, self._err = folder / f"{self.mark}.out", folder / f"{self.mark}.err"
        self.started = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env={**os.environ, _MARK: self.mark},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self.left_over(_TIDY_S)  # those that clean up after the others, such as the resource tracker, end by themselves
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has told so far."""
        return self._err.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def wait_for(self, text: str, within_s: float) -> float:
        """Wait until ``text`` is on stderr; the seconds since the start. Ends the program if it does not come."""
        while text not in self.stderr:
            waited = time.monotonic() - self.started
            if self.exit_code is not None or waited > within_s:
                raise SystemExit(f"{text!r} was not told within {waited:.1f} s:\n{self.stderr[-2000:]}")
            time.sleep(_POLL_S)
        return time.monotonic() - self.started

    def wait(self, within_s: float) -> int:
        """Wait for its end; the exit code. Ends the program if it takes longer."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"still running after {within_s:.0f} s:\n{self.stderr[-2000:]}") from None

    def stop(self) -> None:
        """Ask it to end, if it has not, and wait for that."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def processes(self) -> dict[str, Facts]:
        """Facts by name of all processes that belong to it; names that are taken get their pid added."""
        found: dict[str, Facts] = {}
        for pid, name in sorted(marked(self.mark).items()):
            facts = facts_of(pid)
            if facts is not None:
                found[f"{name} {pid}" if name in found else name] = facts
        return found

    def left_over(self, within_s: float = 5.0) -> list[str]:
        """Names of its processes that still live that long after its end."""
        end = time.monotonic() + within_s
        while (names := sorted(marked(self.mark).values())) and time.monotonic() < end:
            time.sleep(_POLL_S)
        return names
