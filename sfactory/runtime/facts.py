"""Room: what is known of a session at its start. In: its arguments, the machine. Out: plain values for run.json."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import secrets
import socket
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from sfactory import __version__


def local_time() -> str:
    """The time of day and its zone, to the second, for people to read."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def session_facts(argv: Sequence[str], seed: int | None) -> dict[str, object]:
    """Which session this is, on what machine, and with which versions.

    Environment variables stay out: they hold secrets.
    """
    return {
        "id": secrets.token_hex(8),
        "started": local_time(),
        "argv": list(argv),
        "seed": seed,
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
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
