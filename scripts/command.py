"""Starts commands, such as sfactory's benchmark, and ends all of their processes.

This module is imported by other scripts. A command runs in its own session, and a mark in the environment identifies
its processes, also those that lost their parent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from scripts.proc import MARK, marked

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python")
RUN_LIMIT_S = 600.0
LOOK_EVERY_S = 0.25
_POLL_S = 0.02
_END_S = 20.0
_TIDY_S = 2.0
_TAIL_LINES = 30
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Output(NamedTuple):
    """The output of a command that succeeded."""

    stdout: str
    stderr: str


class Command:
    """A running command. Leaving the block ends it and every process that it started.

    A SIGTERM to the script leaves the block.
    started: when, on the monotonic clock. stdout_path: the file that takes its stdout.
    """

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it at once; ``folder`` takes its outputs, and ``environment`` comes on top of this process's own."""
        self._argv, self._mark = list(argv), uuid.uuid4().hex
        self._on_term: Any = None  # what a SIGTERM did before the block
        self.stdout_path, self._stderr_path = folder / f"{self._mark}.out", folder / f"{self._mark}.err"
        self.started = time.monotonic()
        with self.stdout_path.open("wb") as out, self._stderr_path.open("wb") as err:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env={**os.environ, **(environment or {}), MARK: self._mark},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._on_term = signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self.left_over(_TIDY_S)  # those that clean up after the others, such as the resource tracker, end by themselves
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A program that writes its title over its environment has no mark any more, but it is in the session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.session, signal.SIGKILL)
        self._process.wait()
        if self._on_term is not None:
            signal.signal(signal.SIGTERM, self._on_term)

    @property
    def session(self) -> int:
        """The session of its processes, which is the pid of the first."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def stdout(self) -> str:
        """What it has printed so far, without colours."""
        return _text(self.stdout_path)

    @property
    def stderr(self) -> str:
        """Its stderr so far, without colours."""
        return _text(self._stderr_path)

    def living(self) -> dict[int, str]:
        """Name by pid of its processes that live."""
        return marked(self._mark)

    def runs_on(self, within_s: float) -> bool:
        """Wait up to so many seconds for its end; whether it still runs then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        return self.exit_code is None

    def wait_for(self, text: str, within_s: float) -> float:
        """Wait until ``text`` stands in its stderr; seconds from the start until then. Ends the program otherwise."""
        while text not in self.stderr:
            waited = time.monotonic() - self.started
            if self.exit_code is not None or waited > within_s:
                raise self.failure(f"{text!r} was not printed within {waited:.1f} s")
            time.sleep(_POLL_S)
        return time.monotonic() - self.started

    def wait(self, within_s: float) -> int:
        """Wait for its end; the exit code. Ends the program if it takes longer."""
        if self.runs_on(within_s):
            raise self.failure(f"still running after {within_s:.0f} s")
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        """A signal to its first process, if that has not ended."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Ask it to end, if it has not, and wait for that."""
        self.send(signal.SIGTERM)
        self.runs_on(_END_S)

    def left_over(self, within_s: float = 5.0) -> list[str]:
        """Names of its processes that still live that long after its end."""
        end = time.monotonic() + within_s
        while (names := sorted(self.living().values())) and time.monotonic() < end:
            time.sleep(_POLL_S)
        return names

    def failure(self, ended: str) -> SystemExit:
        """The exit of a script after its command failed: the command, its exit code, and the end of its stderr."""
        tail = "\n".join(self.stderr.splitlines()[-_TAIL_LINES:])
        return SystemExit(f"error: {shlex.join(self._argv)}\n{ended}; the end of its stderr:\n{tail}")


def run(
    argv: Sequence[str],
    cwd: Path | None = None,
    looking: Callable[[int], object] = lambda session: None,
    environment: Mapping[str, str] | None = None,
    limit_s: float = RUN_LIMIT_S,
) -> Output:
    """Run a command to its end; ``looking(session)`` is called a few times a second.

    Exits with the error if it fails or takes longer than ``limit_s`` seconds.
    """
    with tempfile.TemporaryDirectory() as folder, Command(argv, Path(folder), cwd, environment) as command:
        while command.runs_on(LOOK_EVERY_S):
            if time.monotonic() - command.started > limit_s:
                raise command.failure(f"took longer than {limit_s:g} s")
            looking(command.session)
        if command.exit_code:
            raise command.failure(f"ended with {command.exit_code}")
        return Output(command.stdout, command.stderr)


def shown(argv: Sequence[str], cwd: Path | None = None, peers: Path | None = None) -> str:
    """The command as typed in the repository's root, without paths of this machine.

    ``cwd``: the bench folder, if it runs there.
    """
    places = {f"{ROOT}/": "" if cwd is None else "REPOSITORY/"} | ({} if peers is None else {f"{peers}/": "PEERS/"})
    words = ["python" if word == sys.executable else word for word in argv]
    for place, name in places.items():
        words = [name + word.removeprefix(place) if word.startswith(place) else word for word in words]
    return ("cd BENCH && " if cwd is not None else "") + shlex.join(words)


def json_line(text: str) -> dict[str, Any]:
    """The last line of ``text`` that is a JSON object."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"error: no JSON line in:\n{text[-2000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _leave(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends two, and the second is not to end the tidying up
    raise SystemExit(128 + number)


def _text(path: Path) -> str:
    return _COLOURS.sub("", path.read_text(errors="replace"))


TRAIN = (sys.executable, "-m", "sfactory.train")


def benchmark(flags: Sequence[str], seconds: float, stage: str = "full") -> list[str]:
    """The command that measures a stage of a run with these flags."""
    measure = ["--benchmark=True", f"--benchmark_stage={stage}", f"--benchmark_seconds={seconds:g}"]
    return [*TRAIN, *flags, *measure]


def rate_of(command: Sequence[str], cwd: Path | None = None) -> float:
    """Env steps per second, as a benchmark tells them."""
    return rate_in(run(command, cwd))


def rate_in(output: Output) -> float:
    """Env steps per second, at the end of a benchmark's output."""
    return float(json_line(output.stdout)["env_steps_per_second"])


def rate_text(steps_per_second: float) -> str:
    """As scripts print it, of env steps or of agents' steps."""
    return f"{steps_per_second:,.0f} steps/s"


def folder(text: str) -> Path:
    """The path, from wherever, of a folder that is there."""
    path = Path(text).absolute()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of a script, and the flags of a run after ``--``."""
    own = list(arguments)
    if "--" not in own:
        return own, []
    at = own.index("--")
    return own[:at], own[at + 1 :]
