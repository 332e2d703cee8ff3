"""Starts programs with a mark in their environment, and looks at them in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.proc import MARK, marked
from scripts.process_facts import SHM, shm_left_since, shm_names
from tests.support.source import ROOT
from tests.support.warm_process import WarmRun, environment, warm_process

_STAYS_S = 10.0


def eventually(predicate: Callable[[], bool], within_s: float, every_s: float = 0.05) -> bool:
    """Whether ``predicate`` comes true within the bound; looks at least twice."""
    end = time.monotonic() + within_s
    while not predicate():
        if time.monotonic() > end:
            return predicate()
        time.sleep(every_s)
    return True


def handles() -> dict[int, str]:
    """What each open file of this process leads to, by its number."""
    found: dict[int, str] = {}
    for link in Path("/proc/self/fd").iterdir():
        # The one that the folder itself is read by is closed by now.
        with contextlib.suppress(OSError):
            found[int(link.name)] = str(link.readlink())
    return found


def named_memory_since(before: frozenset[str]) -> set[str]:
    """Names that came into /dev/shm since ``before`` and that this process maps, or that stay though none maps them.

    Other processes of the machine may have names there, too, of which some are mapped a moment later.
    """

    def found() -> set[str]:
        mapped = Path("/proc/self/maps").read_text().splitlines()
        ours = {name for name in shm_names() - before if any(line.endswith(f" {SHM}/{name}") for line in mapped)}
        return ours.union(shm_left_since(before))

    names = found()
    return set() if eventually(lambda: names.isdisjoint(found()), _STAYS_S) else names & found()


def catches_signal(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for that signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


class MarkedProgram:
    """A program in a session of its own, and all processes of it by their mark. ``close`` it, whatever happens."""

    def __init__(self, mark: str, argv: Sequence[str], folder: Path) -> None:
        """``folder`` takes the outputs."""
        self.mark, self.argv = mark, list(argv)
        self._out, self._err = folder / f"{mark}.stdout", folder / f"{mark}.stderr"
        self._process: WarmRun | subprocess.Popen[bytes]

    def _start(self, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        env = {**variables, MARK: self.mark}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT, env=env, start_new_session=True
            )

    def _fork(self, module: str, argv: Sequence[str], folder: Path = ROOT) -> None:
        """Run ``module`` in ``folder``, forked from the warm process."""
        env = {**environment(), MARK: self.mark}
        self._process = warm_process().start(module, argv, cwd=folder, env=env, stdout=self._out, stderr=self._err)

    @property
    def pid(self) -> int:
        """Process id of the program, which is its session's and process group's too."""
        return self._process.pid

    @property
    def stdout(self) -> str:
        """Everything on stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """Everything on stderr so far."""
        return self._err.read_text(errors="replace")

    def signal_group(self, number: int) -> None:
        """Send a signal to the process group, as a terminal does on Ctrl-C."""
        os.killpg(self.pid, number)

    def wait(self, within_s: float) -> int:
        """The exit code; fails if it does not end within the bound. A signal's death is the negative number."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            left = sorted(marked(self.mark).values())
            raise AssertionError(self.report(f"did not end within {within_s} s; alive: {left}")) from None

    def assert_all_gone(self, within_s: float) -> None:
        """No process of it is left."""
        gone = eventually(lambda: not marked(self.mark), within_s)
        assert gone, self.report(f"still alive: {marked(self.mark)}")

    def report(self, problem: str) -> str:
        """The problem, the command, and the end of both outputs: what a failed test shows."""
        out, err = self.stdout[-2000:], self.stderr[-6000:]
        return f"{problem}\n$ {' '.join(self.argv)}\n--- stdout\n{out}\n--- stderr\n{err}"

    def close(self) -> None:
        """End every process of it that still lives."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
