"""A process that has imported everything once, and from which whole runs are forked instead of new interpreters.

Importing torch, in main and in its fork server, takes most of the time of a short run. What ``start`` gives
is like ``python -m MODULE ARGUMENTS``: it has a session, an environment, output files, an exit code and a fork server
of its own. A run dies with the warm process, which ends with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from multiprocessing import util
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from scripts.proc import MARK

_PLACEHOLDER = "0" * 32  # as long as a run's id, which overwrites it
_POLL_S = 0.01
_START_S = 240.0
_PR_SET_PDEATHSIG = 1
# These load libraries that a training run does without.
_LEFT_OUT = ("sfactory.plot", "sfactory.__main__", "sfactory.supervise.preload", "sfactory.process.fork_server")


class WarmRun:
    """A run that was forked from the warm process; the part of subprocess.Popen that tests use."""

    def __init__(self, pid: int, exit_path: Path) -> None:
        self.pid, self._exit_path = pid, exit_path
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, None while it runs; a signal's death is the negative number."""
        if self.returncode is None and self._exit_path.exists():
            self.returncode = int(self._exit_path.read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; raises TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """End it, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class WarmProcess:
    """The warm process, as pytest sees it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env={**environment, MARK: _PLACEHOLDER},
            start_new_session=True,
            bufsize=0,
        )
        assert self._answer() == 0, "the warm process did not start"
        atexit.register(self._process.kill)

    def start(
        self, module: str, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path
    ) -> WarmRun:
        """Run ``module`` with ``argv``. ``env`` holds the run's id; the exit code is written beside ``stdout``."""
        exit_path = stdout.with_suffix(".exit")
        request = {"module": module, "argv": list(argv), "cwd": str(cwd), "env": dict(env)}
        request |= {"stdout": str(stdout), "stderr": str(stderr), "exit": str(exit_path)}
        assert self._process.stdin is not None
        stdout.touch()
        stderr.touch()
        with self._lock:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            return WarmRun(self._answer(), exit_path)

    def _answer(self) -> int:
        assert self._process.stdout is not None
        ready = wait([self._process.stdout.fileno()], _START_S)
        line = self._process.stdout.readline() if ready else b""
        assert line.endswith(b"\n"), f"the warm process is gone or stuck: {self._process.poll()}"
        return int(line)


@functools.cache
def warm_process() -> WarmProcess:
    """The one of this process of pytest. It inherits the environment as it is when the first run is started."""
    return WarmProcess(environment())


def finished(
    module: str, *argv: str, cwd: Path | None = None, packages: Path | None = None, within_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """``python -m MODULE ARGUMENTS`` that has ended. packages: a folder of installed ones that it can import, too."""
    # A run that is killed at the limit leaves processes that may still write.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        env = {**environment(), MARK: uuid.uuid4().hex, **({} if packages is None else {"PYTHONPATH": str(packages)})}
        run = warm_process().start(module, argv, cwd=cwd or Path(folder), env=env, stdout=stdout, stderr=stderr)
        try:
            return subprocess.CompletedProcess(
                [module, *argv], run.wait(within_s), stdout.read_text(), stderr.read_text()
            )
        except subprocess.TimeoutExpired as error:
            error.add_note(stderr.read_text())
            raise
        finally:
            run.kill()


def environment() -> dict[str, str]:
    """What every run of the tests inherits: bounds on waiting for faults are shorter than a user's."""
    return {**os.environ, "SFACTORY_TIMEOUT_SCALE": os.environ.get("SFACTORY_TIMEOUT_SCALE", "0.3")}


def _import_all() -> None:
    from sfactory.system.cores import set_for_children

    set_for_children()
    for name in ("torch", "numpy", "gymnasium", "faster_fifo", "multiprocessing", "yaml"):
        importlib.import_module(name)
    import sfactory

    for module in pkgutil.walk_packages(sfactory.__path__, "sfactory."):
        if module.name not in _LEFT_OUT:
            importlib.import_module(module.name)
    assert threading.active_count() == 1


def _serve() -> None:
    """Fork a run for each line on stdin, until it is closed."""
    _import_all()
    gc.collect()
    gc.freeze()
    print(0, flush=True)
    requests = io.FileIO(0)  # nothing may be read ahead of a fork
    poller = select.poll()
    poller.register(0, select.POLLIN)
    runs: dict[int, tuple[int, str]] = {}
    while True:
        for fd, _ in poller.poll():
            if fd in runs:
                pid, path = runs.pop(fd)
                poller.unregister(fd)
                os.close(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):  # the folder may be gone with its test
                    Path(f"{path}.new").write_text(str(code))
                    os.replace(f"{path}.new", path)
            elif line := requests.readline():
                request = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    _run(request, runs)
                handle = os.pidfd_open(pid)
                poller.register(handle, select.POLLIN)
                runs[handle] = pid, request["exit"]
                print(pid, flush=True)
            else:
                return


def _run(request: dict[str, Any], runs: Mapping[int, object]) -> None:
    """Become the run. Does not return."""
    code = 1
    try:
        for fd in runs:
            os.close(fd)
        _set_up(request)
        code = _main(request["module"])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _set_up(request: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.chdir(request["cwd"])
    opened = [os.open(os.devnull, os.O_RDONLY)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOCTTY  # a terminal does not control the run
    opened += [os.open(request[name], flags, 0o666) for name in ("stdout", "stderr")]
    for target, fd in enumerate(opened):
        os.dup2(fd, target)
        os.close(fd)
    _set_environment(libc, request["env"])
    module = request["module"]
    sys.argv = [module, *request["argv"]]
    sys.path[0] = request["cwd"]
    sys.path[1:1] = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    main, spec = sys.modules["__main__"], importlib.util.find_spec(module)
    assert spec is not None
    main.__spec__, main.__file__ = spec, spec.origin
    util.spawnv_passfds = functools.partial(_start_server, util.spawnv_passfds)
    vars(importlib.import_module("sfactory.train"))["_STARTED_AT"] = time.monotonic()


def _set_environment(libc: ctypes.CDLL, env: Mapping[str, str]) -> None:
    """Set os.environ, and the mark also where /proc/PID/environ shows it."""
    libc.getenv.restype = ctypes.c_void_p
    assert len(env[MARK]) == len(_PLACEHOLDER)
    ctypes.memmove(libc.getenv(MARK.encode()), env[MARK].encode(), len(_PLACEHOLDER))
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None


def _main(module: str) -> int:
    try:
        if module in sys.modules:
            return int(sys.modules[module].main() or 0)
        runpy.run_module(module, run_name="__main__", alter_sys=True)  # a user's program
        return 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0


def _start_server(spawn: Any, path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """As multiprocessing.util.spawnv_passfds, but a fork server is forked from the run instead of started afresh."""
    command = args[args.index("-c") + 1] if "-c" in args else ""
    if "forkserver" not in command:
        return int(spawn(path, args, passfds))
    pid = os.fork()
    if pid:
        return pid
    try:
        _be_like_new(set(passfds) | {0, 1, 2})
        with contextlib.suppress(SystemExit):
            exec(command, {"__name__": "__main__"})
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _be_like_new(kept: set[int]) -> None:
    """Lose what a new interpreter would not have: open files, handlers of signals and of the exit, a name."""
    atexit._clear()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    Path("/proc/self/comm").write_text("python")


if __name__ == "__main__":
    _serve()
