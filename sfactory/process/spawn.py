"""Starts child processes and runs their first and last lines.

Children are forked from a server process that has imported torch, numpy and gymnasium once (forkserver); see
docs/decisions/0001-start-method.md for the measurement.

NOTE [Death of main]: a child holds the read end of a pipe, and only main has the write end. The kernel sends SIGKILL to
the child when main's end is closed. So children die with main whatever they are doing, even inside C code that holds
the interpreter's lock, and no thread has to watch main. NOTE [End of main] has a second tie, for envs that close it.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfactory.atomic import append_line, open_log
from sfactory.clock import Deadline
from sfactory.errors import ConfigError, ExitCode, ResourceError, SFactoryError, failure_text, named
from sfactory.process.orphans import OFTEN_S, adopt_orphans, children_of, has_ended, send
from sfactory.process.signals import leave_signals_to_main, set_process_name, signals_held_back
from sfactory.process.stack_dump import StackDump, is_alive
from sfactory.process.watcher import END, ENVS_IN_MAIN, LOOK, MAIN, NO_ENVS_IN_MAIN, SOCKET_DIR, VIEW_CLOSED, VIEW_OPEN
from sfactory.shared.status import FailureBoard, StatusBoard
from sfactory.system.operating_system import LINUX
from sfactory.system.resources import FEWER_SENT, raise_file_limit, require_imports, require_linux
from sfactory.system.streams import open_standard_streams, unblocked

if TYPE_CHECKING:  # Windows lacks them
    from multiprocessing.context import ForkServerContext, ForkServerProcess

_F_SETSIG = 10  # fcntl.F_SETSIG is missing from Python's fcntl
_SERVER_END_S = 1.0


@dataclass(frozen=True)
class ChildSpec:
    """What every child gets: its name, the boards it writes to, its niceness, where it writes its stacks.

    log_path: the file it logs to, beside stderr. log_level: of the least severe messages there, as in logging.
    """

    name: str
    status: StatusBoard
    failures: FailureBoard
    niceness: int
    stack: StackDump
    log_path: Path | None = None
    log_level: int = logging.INFO


def child_main(spec: ChildSpec, role: Callable[..., None], *given: Any) -> None:
    """Entry point of a child: set the process up, then run ``role(*given, row)``. Does not return."""
    prepare_process(spec.name, spec.stack)
    if spec.log_path is not None:
        _log_to(spec.log_path, spec.log_level, spec.name)
    row = spec.status.row(spec.name)
    row.start()
    code = int(ExitCode.DONE)
    try:
        with contextlib.suppress(OSError):  # lowering niceness needs rights; main has warned where they lack
            os.nice(spec.niceness)
        role(*given, row)
    except BaseException as error:
        spec.failures.write(spec.name, failure_text(error))
        code = int(error.exit_code) if isinstance(error, SFactoryError) else int(ExitCode.FAULTS)
    finally:
        row.set("ended", 1 + code)  # main cannot learn it otherwise once the fork server has ended
        leave(code)


def prepare_process(name: str, stack: StackDump) -> None:
    """Name the process, have it die with main, leave signals to main, and stdout to results.

    Programs that an env starts get no file of ours. ``stack``: where the process writes its stacks when main asks for
    them.
    """
    set_process_name(name)
    _die_with_main()
    adopt_orphans()
    leave_signals_to_main()
    os.dup2(2, 1)
    open_standard_streams()
    for fd in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2}:  # those that the server was sent are inheritable
        with contextlib.suppress(OSError):  # the folder itself was read by one
            os.set_inheritable(fd, False)
    faulthandler.enable(unblocked(2))  # otherwise a crash would wait for the reader of its stacks
    stack.answer()
    logging.basicConfig(format=f"[%(asctime)s] {name}: %(message)s", datefmt="%H:%M:%S")


class _LogFile(logging.Handler):
    """A file that several processes append to, whole lines each. A full disk costs lines, never the process."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def emit(self, record: logging.LogRecord) -> None:
        """Append one record; of an error nothing is said, as the record is on stderr, too."""
        with contextlib.suppress(Exception):  # also of a library's mistake in a message
            append_line(self._fd, self.format(record))


def _log_to(path: Path, level: int, name: str) -> None:
    """Log messages of ``level`` to a file, too; the level of the root logger goes on to choose what is printed."""
    with contextlib.suppress(OSError):
        handler, root = _LogFile(open_log(path)), logging.getLogger()
        form = f"[%(asctime)s] %(levelname)s: {name}: %(message)s"
        handler.setFormatter(logging.Formatter(form, datefmt="%Y-%m-%d %H:%M:%S"))
        for printing in root.handlers:
            printing.setLevel(root.level)
        root.setLevel(level)
        root.addHandler(handler)


def leave(code: int) -> None:
    """End the process now, without waiting for threads or exit handlers of libraries."""
    _end_fork_server()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _end_fork_server() -> None:
    """End the server by which an env, such as an AsyncVectorEnv, has started processes: no leftover to warn of."""
    server: Any = forkserver._forkserver
    if (pid := server._forkserver_pid) is None:
        return
    with contextlib.suppress(OSError):
        os.close(server._forkserver_alive_fd)  # it ends by itself then
    deadline = Deadline(_SERVER_END_S)
    while not has_ended(pid) and not deadline.passed:
        time.sleep(OFTEN_S)


def _die_with_main() -> None:
    import fcntl

    parent = multiprocessing.parent_process()
    assert parent is not None, "a child is started by multiprocessing"
    fd = parent.sentinel
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([fd], 0):  # main died before the kernel was asked
        os._exit(int(ExitCode.FAULTS))


# The watcher splits off first. The last one is not imported from here: it would import everything.
_PRELOAD = ["sfactory.process.fork_server", "torch", "numpy", "gymnasium", "faster_fifo", "sfactory.supervise.preload"]

NOT_KNOWN = 255  # multiprocessing's exit code of a child whose server has ended, alive or not
_SERVER = "the fork server"
_WHY = "was it killed, or is memory or the number of processes limited (docker run --memory, --pids-limit; ulimit -u)?"
_END_S = 5.0
_LONGEST_TEMPORARY = 107 - len("/pymp-12345678/listener-12345678")  # the kernel takes 107 bytes for a socket


class Spawner:
    """Starts processes; ``open`` it as early as possible, it imports torch in the background.

    On Linux alone; elsewhere ``open`` and what concerns the server do nothing, and ``start`` raises ResourceError.
    """

    # Of this process, as the fork server is: a process id, whether the server has ended, and its environment variables,
    # None if it was not started here.
    _watcher: int | None = None
    _is_lost = False
    _server_has: Mapping[str, str] | None = None

    def __init__(self, program: Mapping[str, object] | None = None, printed_level: int = logging.INFO) -> None:
        """program: classes and functions by name that the program has and children cannot import: of a notebook.
        printed_level: of the least severe messages that children print, as in logging.

        Children have the environment variables of now. Raises ConfigError if ``program`` cannot be sent to processes.
        """
        self._variables = dict(os.environ)
        self._program = _sendable(program) if program else None
        self._printed_level = printed_level
        if LINUX:
            self._context: ForkServerContext = multiprocessing.get_context("forkserver")
            self._context.set_forkserver_preload(_PRELOAD)

    def open(self) -> None:
        """Raise the limit of open files, and start the server and its watcher, which ignore signals to the group.

        Raises ResourceError if memory does not suffice, or the folder for temporary files has too long a path for
        sockets, and ConfigError in a process that was forked from one that has a fork server.
        """
        if not LINUX:
            return
        require_imports()
        raise_file_limit()
        if len(os.fsencode(temporary := tempfile.gettempdir())) > _LONGEST_TEMPORARY:
            raise ResourceError(
                f"the path of the folder for temporary files, {temporary}, is longer than {_LONGEST_TEMPORARY} bytes, "
                "and sockets in it would be too long; set a shorter one: TMPDIR=/tmp"
            )
        with _starting(_SERVER):
            with signals_held_back():  # a signal to the group does not end it
                resource_tracker.ensure_running()
            self._start_server()
        if self._watcher is None:
            logging.getLogger(__name__).warning(
                "this program has a fork server of its own, which is used: what envs leave behind is not ended"
            )

    def _start_server(self) -> None:
        """Start the server and its watcher if they do not run, or have ended."""
        before = _server_pid()
        if Spawner._is_lost and before:
            for signum in (END, signal.SIGKILL):  # by the first, the watcher ends all that is left
                send(before, signum)
                deadline = Deadline(_END_S)
                while is_alive(before) and not deadline.passed:
                    time.sleep(OFTEN_S)
        Spawner._is_lost = False
        variables = dict(os.environ)
        os.environ.update({MAIN: str(os.getpid()), SOCKET_DIR: util.get_temp_dir()})
        try:
            with signals_held_back():
                forkserver.ensure_running()
        finally:
            del os.environ[MAIN], os.environ[SOCKET_DIR]
        if _server_pid() != before:  # it is the watcher, then
            Spawner._watcher, Spawner._server_has = _server_pid(), variables

    def end_orphans(self, within_s: float = 0.0) -> None:
        """Have what ended children have left behind ended, and wait ``within_s`` seconds for it at most."""
        self._signal(LOOK)
        deadline = Deadline(within_s)
        kept = 0 if Spawner._is_lost else 1  # the server
        while self._watcher is not None and len(children_of(self._watcher)) > kept and not deadline.passed:
            time.sleep(OFTEN_S)

    def envs_live_here(self, yes: bool) -> None:
        """Whether envs live in this process from now on, so that what they start is ended if it is killed."""
        self._signal(ENVS_IN_MAIN if yes else NO_ENVS_IN_MAIN)

    def view_is_open(self, yes: bool) -> None:
        """Whether a live view keeps rows of the terminal from now on, which it gets back if this process is killed."""
        self._signal(VIEW_OPEN if yes else VIEW_CLOSED)

    def _signal(self, signum: int) -> None:
        if self._watcher is not None and _server_pid() == self._watcher:
            send(self._watcher, signum)

    def start(self, name: str, target: Callable[..., None], *given: Any) -> ForkServerProcess:
        """Start a child that runs ``target(*given)``; raises ResourceError if it cannot be started."""
        require_linux(f"the process {name}", "use --serial_mode=True")
        with _starting(name):
            self._start_server()  # without a watcher, multiprocessing would start one that has ended
            args = self._program, self._printed_level, target, *given
            process = self._context.Process(target=_begin, args=args, name=_Name(name).with_changes(self._changes()))
            process.start()
            return process

    def _changes(self) -> dict[str, str | None]:
        """What children change in the environment variables that they have of the server; None: remove it."""
        before = Spawner._server_has or {}
        changed = {name: value for name, value in self._variables.items() if before.get(name) != value}
        return {**changed, **dict.fromkeys(before.keys() - self._variables.keys())}

    def loss(self, process: BaseProcess) -> str:
        """Names what has ended if ``process`` has not, but the server that would tell of its end; otherwise "".

        Such a loss is remembered: the next start is by a new server.
        """
        if process.exitcode != NOT_KNOWN or not is_alive(process.pid or 0):
            return ""
        Spawner._is_lost = True
        alone = self._watcher is None or is_alive(self._watcher)
        return f"{_SERVER if alone else f'sfactory-watch, the parent of {_SERVER},'} has ended; {_WHY}"

    def kill(self, process: BaseProcess) -> None:
        """SIGKILL a child that has not ended, also one that multiprocessing takes for ended. See ``loss``."""
        if process.exitcode is None or self.loss(process):
            assert process.pid is not None, "it was started"
            send(process.pid, signal.SIGKILL)

    def pipe(self) -> tuple[Any, Any]:
        """A one-way pipe: (read end, write end)."""
        return self._context.Pipe(duplex=False)


class _Name(str):
    """Name of a child, which changes environment variables there: it arrives before the program and its modules."""

    changes: Mapping[str, str | None]

    def with_changes(self, changes: Mapping[str, str | None]) -> _Name:
        """Itself, with variables that it sets, or removes where the value is None."""
        self.changes = changes
        return self

    def __reduce__(self) -> tuple[Callable[..., str], tuple[str, Mapping[str, str | None]]]:
        return _arrived, (str(self), self.changes)


def _arrived(name: str, changes: Mapping[str, str | None]) -> str:
    for variable, value in changes.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    return name


def _sendable(program: Mapping[str, object]) -> Any:
    """``program`` as Gymnasium sends envs to its processes: by value, with what it uses of the program."""
    from gymnasium.vector.utils import CloudpickleWrapper

    sent = CloudpickleWrapper(dict(program))  # type: ignore[arg-type]  # its parameter is called a function
    try:
        sent.__getstate__()
    except Exception as error:  # of whatever the program's code refers to
        raise ConfigError(
            [
                f"{', '.join(program)}: this program has no file, so its processes are sent what it has defined, "
                f"and that fails: {named(error)}; write it to a module, and import it (in a notebook begin a cell with "
                "%%writefile my_envs.py)"
            ]
        ) from None
    return sent


def _begin(program: Any, printed_level: int, target: Callable[..., None], *given: Any) -> None:
    """First lines of a child. In one of a program without a file ``__main__:name`` leads to what that has defined."""
    if program is not None:
        vars(sys.modules["__main__"]).update(program.fn)
    logging.getLogger().setLevel(printed_level)
    target(*given)


@contextlib.contextmanager
def _starting(name: str) -> Iterator[None]:
    """Raise ResourceError if the process ``name`` cannot be started in the block, ConfigError in a forked process."""
    try:
        yield
    except ChildProcessError:  # multiprocessing waits for the server of the process from which this one was forked
        raise ConfigError(
            [
                f"{name} cannot be started: this process was forked from one that has used sfactory, or a fork server "
                'of its own; start it by multiprocessing.get_context("spawn"), or by subprocess'
            ]
        ) from None
    except ValueError as error:
        if "too many fds" not in str(error):  # as multiprocessing says it
            raise
        raise ResourceError(f"{name} cannot be started: {FEWER_SENT}") from None
    except (EOFError, OSError) as error:
        cause = named(error)
        if isinstance(error, EOFError | ConnectionError):
            Spawner._is_lost, cause = True, f"{_SERVER} has ended; {_WHY}"
        elif error.errno in (errno.EAGAIN, errno.ENOMEM):
            cause += f"; {_WHY}"
        raise ResourceError(f"{name} cannot be started: {cause}") from None


def _server_pid() -> int:
    """Of the process that multiprocessing has started as fork server, 0 if there is none."""
    return forkserver._forkserver._forkserver_pid or 0  # type: ignore[attr-defined]
