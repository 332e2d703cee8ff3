"""What the scripts that measure have in common: commands and their failures, alternating rounds, the machine, JSON.

It has no command of its own; see bench.py, compare_peers.py and time_to_score.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sfactory.cores import Cores

ROOT = Path(__file__).resolve().parents[1]
RUN_LIMIT_S = 600.0
LOOK_EVERY_S = 0.25
_TAIL_LINES = 30
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

T = TypeVar("T")


class Output(NamedTuple):
    """What a command that went well has printed."""

    stdout: str
    stderr: str


def folder(text: str) -> Path:
    """An argument of a command line: the path, from wherever, of a folder that is there."""
    path = Path(text).absolute()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is meant for a script, and the flags of a run, which stand behind ``--``."""
    own = list(arguments)
    if "--" not in own:
        return own, []
    at = own.index("--")
    return own[:at], own[at + 1 :]


def shown(command: Sequence[str], cwd: Path | None = None, peers: Path | None = None) -> str:
    """The command as one would type it from the repository's root, whatever the places on this machine are called.

    ``cwd``: the bench folder, if it runs there.
    """
    places = {f"{ROOT}/": "" if cwd is None else "REPOSITORY/"} | ({} if peers is None else {f"{peers}/": "PEERS/"})
    words = ["python" if word == sys.executable else word for word in command]
    for place, name in places.items():
        words = [name + word.removeprefix(place) if word.startswith(place) else word for word in words]
    return ("cd BENCH && " if cwd is not None else "") + shlex.join(words)


def failure(command: Sequence[str], ended: str, stderr: str) -> SystemExit:
    """The end of a script whose measurement failed: the command, how it ended, and the last it said."""
    tail = "\n".join(stderr.splitlines()[-_TAIL_LINES:])
    return SystemExit(f"error: {shlex.join(command)}\n{ended}; the end of its stderr:\n{tail}")


def run(
    command: Sequence[str],
    cwd: Path | None = None,
    looking: Callable[[int], object] = lambda session: None,
    environment: Mapping[str, str] | None = None,
) -> Output:
    """Run a command to its end, in a session of its own; ``looking(session)`` is called a few times a second.

    Exits with what went wrong if it fails or takes longer than RUN_LIMIT_S.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + RUN_LIMIT_S
            while process.poll() is None and time.monotonic() < deadline:
                looking(process.pid)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY_S)
        finally:
            code = process.poll()
            kill_session(process)
        output = Output(_content(out), _content(err))
    if code != 0:
        ended = f"took longer than {RUN_LIMIT_S:g} s" if code is None else f"ended with {code}"
        raise failure(command, ended, output.stderr)
    return output


def kill_session(process: subprocess.Popen[Any]) -> None:
    """End a process that was started in a session of its own, and whatever it has left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _content(file: Any) -> str:
    file.seek(0)
    return _COLOURS.sub("", file.read())


def json_line(text: str) -> dict[str, Any]:
    """The last line of ``text`` that is a JSON object."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"error: no JSON line in:\n{text[-2000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def alternating(
    systems: Mapping[str, Callable[[], T]], rounds: int, told: Callable[[T], str] = str
) -> dict[str, list[T]]:
    """What each system gives in each round. Rounds alternate between systems, so that drift treats all alike."""
    results: dict[str, list[T]] = {name: [] for name in systems}
    for round_ in range(rounds):
        for name, measure in systems.items():
            results[name].append(measure())
            print(f"round {round_ + 1}: {name}: {told(results[name][-1])}", flush=True)
    return results


def medians(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each series that has numbers."""
    return {name: statistics.median(values) for name, values in rounds.items() if values}


def cpu_model(cpuinfo: str) -> str:
    """The model that /proc/cpuinfo names, or the architecture where it names none."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def machine() -> dict[str, object]:
    """Where and with what it was measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": Cores.available().count,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numpy", "gymnasium", "sfactory")},
    }


def write_json(path: Path, result: object) -> None:
    """Write ``result`` for people to read, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
