"""Runs jobs as processes of this machine and assigns GPUs to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from sfactory.atomic import opened
from sfactory.clock import RUN_MOST_S, Deadline
from sfactory.errors import ConfigError, named
from sfactory.launch.jobs import Job, LaunchState, Status, print_line
from sfactory.launch.tied_process import tied_command
from sfactory.process.signals import HANDLED, Interrupts
from sfactory.system.operating_system import signal_name

VISIBLE = "CUDA_VISIBLE_DEVICES"

_POLL_S = 60.0  # longest wait
_CLEAN_UP_S = 2.0  # time to clean up after a run that was killed
_TAIL_BYTES = 1 << 16
_INTERRUPTED = frozenset(128 + signum for signum in HANDLED)
# At the very start a run does not handle signals, and Python ends it as it likes.
_ENDED_EARLY = frozenset({1, *(-signum for signum in HANDLED)})


class Gpus:
    """At most ``per_gpu`` runs on each of ``devices``; None stands for a run that sees the devices of the launcher."""

    def __init__(self, devices: Sequence[str | None], per_gpu: int) -> None:
        self._runs = dict.fromkeys(devices, 0)
        self._per_gpu = per_gpu

    @property
    def full(self) -> bool:
        """Whether no device can take another run."""
        return min(self._runs.values()) >= self._per_gpu

    def take(self) -> str | None:
        """Assign the device with the fewest runs."""
        device = min(self._runs, key=self._runs.__getitem__)
        self._runs[device] += 1
        return device

    def give_back(self, device: str | None) -> None:
        """A run on ``device`` has ended."""
        self._runs[device] -= 1


def devices(count: int, visible: str | None) -> list[str]:
    """Names of the first ``count`` devices; raises ConfigError if ``visible``, CUDA_VISIBLE_DEVICES, lists fewer."""
    if visible is None:
        return [str(number) for number in range(count)]
    seen = [name for name in (part.strip() for part in visible.split(",")) if name]
    if len(seen) < count:
        raise ConfigError([f"--num_gpus={count}: {VISIBLE}={visible} shows {len(seen)}; lower --num_gpus"])
    return seen[:count]


@dataclass
class _Running:
    """A running process. pid_fd: readable once it has ended. log_from: start of its output in the log."""

    job: Job
    process: subprocess.Popen[bytes]
    pid_fd: int
    gpu: str | None
    log_from: int


class LocalRuns:
    """Runs jobs, at most ``max_parallel`` at a time and within the capacity of ``gpus``."""

    def __init__(
        self,
        jobs: Sequence[Job],
        launch_state: LaunchState,
        interrupts: Interrupts,
        max_parallel: int,
        gpus: Gpus,
        pause_s: float,
    ) -> None:
        """``pause_s``: pause between two starts."""
        self._waiting, self._running = deque(jobs), dict[int, _Running]()
        self._launch_state, self._interrupts = launch_state, interrupts
        self._max_parallel, self._gpus, self._pause_s = max_parallel, gpus, pause_s
        self._next_start = Deadline(0.0)
        self._grace: Deadline | None = None

    def run(self) -> None:
        """Run all jobs to the end, or stop them after a signal; no process is left when this returns or raises."""
        try:
            self._on_signals()
            while self._waiting or self._running:
                timeout_s = self._start_what_fits()
                if self._grace is not None:
                    timeout_s = min(timeout_s, self._grace.left)
                for pid_fd in _readable([*self._running, self._interrupts.wake_fd], timeout_s) & self._running.keys():
                    self._ended(self._running.pop(pid_fd))
                self._interrupts.drain()
                self._on_signals()
        finally:
            self._kill()

    def _start_what_fits(self) -> float:
        """Start as many jobs as possible; returns the longest time to wait for an event."""
        while self._waiting and len(self._running) < self._max_parallel and not self._gpus.full:
            if not self._next_start.passed:
                return min(_POLL_S, self._next_start.left)
            job, gpu = self._waiting.popleft(), self._gpus.take()
            try:
                running = _start(job, gpu)
            except (OSError, ValueError) as error:  # ValueError: a text that no process can get
                self._gpus.give_back(gpu)
                self._launch_state.ended(job.name, "failed", None, named(error))
                print_line(f"failed {job.name}: it could not be started: {named(error)}")
                continue
            self._running[running.pid_fd] = running
            self._launch_state.started(job.name)
            on = "" if gpu is None else f" on GPU {gpu}"
            print_line(f"started {job.name}{on}; its output: {job.log_path}")
            self._next_start = Deadline(self._pause_s)
        return _POLL_S if self._running else 0.0

    def _ended(self, running: _Running, killed: bool = False) -> None:
        """Record and print how a process has ended. ``killed``: by this launcher."""
        os.close(running.pid_fd)
        self._gpus.give_back(running.gpu)
        job, code = running.job, -int(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that was killed may be held up by a disk or a GPU
            code = running.process.wait(_CLEAN_UP_S)
        status: Status = "failed"
        if code == 0 and not killed:
            status = "done"
        elif killed or code in _INTERRUPTED or (self._grace is not None and code in _ENDED_EARLY):
            status = "interrupted"
        cause = last_line(job.log_path, running.log_from) if status == "failed" else ""
        self._launch_state.ended(job.name, status, code, cause)
        how = f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
        print_line(f"{status} {job.name}: {how}; {len(self._waiting)} wait, {len(self._running)} run")

    def _on_signals(self) -> None:
        count, signum = self._interrupts.count, self._interrupts.signum
        if not count or signum is None:
            return
        self._waiting.clear()
        if self._grace is None:
            self._grace = Deadline(RUN_MOST_S)
            if self._running:
                count_and_time = f"{len(self._running)} runs are saving and ending, within {RUN_MOST_S:.0f} s"
                print_line(f"{count_and_time}; a second signal ends them at once")
            for running in self._running.values():
                _send(running, signum)
        if count > 1 or self._grace.passed:
            self._kill()

    def _kill(self) -> None:
        """Kill all running processes without saving. The children of a run die with its main process."""
        left = list(self._running.values())
        if not left:
            return
        self._running.clear()
        for running in left:
            _send(running, signal.SIGKILL)
        # The watcher of a run ends what envs have started, cleans up and ends by itself. What is left all the same is
        # in the session of a process that has not been waited for, so its pid cannot have been reused.
        ends = Deadline(_CLEAN_UP_S)
        not_ended = {running.pid_fd for running in left}
        while not_ended and not ends.passed:
            not_ended -= _readable(not_ended, ends.left)
        cleaned = Deadline(_CLEAN_UP_S)
        while not cleaned.passed:
            _readable([self._interrupts.wake_fd], cleaned.left)  # a signal does not shorten this wait
            self._interrupts.drain()
        for running in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
            self._ended(running, killed=True)


def _readable(fds: Collection[int], within_s: float) -> set[int]:
    """Descriptors that are readable; waits for the first one, at most ``within_s`` seconds."""
    return {fd for fd in wait(list(fds), within_s) if isinstance(fd, int)}


def _start(job: Job, gpu: str | None) -> _Running:
    """Start a job in its own session, so that only the launcher gets a terminal's Ctrl-C."""
    with open(job.log_path, "ab", opener=opened) as log:
        log_from = log.tell()
        process = subprocess.Popen(
            tied_command(job.command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **job.env_vars, **({} if gpu is None else {VISIBLE: gpu})},
            start_new_session=True,
        )
    try:
        return _Running(job, process, os.pidfd_open(process.pid), gpu, log_from)
    except OSError:
        process.kill()
        process.wait(_CLEAN_UP_S)
        raise


def _send(running: _Running, signum: int) -> None:
    """Send a signal to the main process only, which stops its children."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(running.pid_fd, signum)


def last_line(path: Path, start: int) -> str:
    """The line of a process's output that says why it failed: the last one, or the error of a refused start."""
    try:
        with open(path, "rb", opener=opened) as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start, end - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"its output cannot be read: {error}"
    printed = [line for line in lines if line.strip() and not line.startswith("{")]
    last = printed[-1] if printed else ""
    errors = [line for line in printed if line.startswith("error: ")]
    return errors[0] if errors and last.startswith("RESULT ") and " cause: " not in last else last
