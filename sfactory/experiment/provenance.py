"""Collects facts about a session for run.json: its arguments, the machine, versions, and the git checkout.

Git may be missing, slow, or refuse a checkout of another user; all of these count as no checkout.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sfactory import __version__
from sfactory.system.cores import core_ids

MOST_DIFF_BYTES = 1 << 20
MOST_UNTRACKED = 100

_TIMEOUT_S = 2.0
_CUT = b"\n... cut here: the changes are larger than 1 MiB\n"


def local_time() -> str:
    """The local time with its zone, to the second, as text."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def session_facts(argv: Sequence[str], seed: int | None) -> dict[str, object]:
    """Identifies the session, its machine and versions. Environment variables are left out: they hold secrets."""
    return {
        "id": secrets.token_hex(8),
        "started": local_time(),
        "argv": list(argv),
        "seed": seed,
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "cpu": _cpu_model(),
        "cpus": len(core_ids()),
        "platform": platform.platform(),
        "versions": {
            "python": sys.version.split()[0],
            "sfactory": __version__,
            **{name: _version(name) for name in ("torch", "numpy", "gymnasium")},
        },
    }


def _version(distribution: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class WorkingTree:
    """A checkout; everything is None without one, or if git did not answer.

    diff: the changes of tracked files since the commit, possibly empty; at most MOST_DIFF_BYTES, and then a last line
    says so. untracked: names from the root of the checkout, at most MOST_UNTRACKED, ignored files left out.
    """

    commit: str | None = None
    diff: bytes | None = None
    untracked: tuple[str, ...] | None = None

    @staticmethod
    def of_current_directory(leave_out: Path) -> WorkingTree:
        """The checkout around the current directory. Files below ``leave_out`` do not count as untracked."""
        answer = _git("rev-parse", "--show-toplevel", "HEAD")
        if answer is None:
            return WorkingTree()
        top, _, commit = answer.decode(errors="replace").rstrip("\n").rpartition("\n")
        return WorkingTree(commit, _diff(), _untracked(Path(top), leave_out))

    @property
    def facts(self) -> dict[str, object]:
        """Its fields in run.json. A checkout is dirty if tracked files differ from the commit."""
        return {
            "git_commit": self.commit,
            "git_dirty": None if self.diff is None else bool(self.diff),
            "git_untracked": None if self.untracked is None else list(self.untracked),
        }


def _diff() -> bytes | None:
    # Whatever the user has configured: no colours or programs, what git apply reads, and the whole checkout.
    plain = "--no-ext-diff --no-textconv --no-color --no-relative --unified=3 --submodule=short"
    diff = _git("diff", *plain.split(), "--src-prefix=a/", "--dst-prefix=b/", "HEAD")
    if diff is None or len(diff) <= MOST_DIFF_BYTES:
        return diff
    kept = diff[: MOST_DIFF_BYTES - len(_CUT)]
    return kept[: kept.rfind(b"\n")] + _CUT


def _untracked(top: Path, leave_out: Path) -> tuple[str, ...] | None:
    where = [":(top)"]
    inside = os.path.relpath(os.path.realpath(leave_out), os.path.realpath(top))
    if inside != "." and inside.split(os.sep)[0] != "..":
        where.append(f":(top,exclude,literal){inside}")
    listed = _git("ls-files", "--others", "--exclude-standard", "--full-name", "-z", "--", *where)
    if listed is None:
        return None
    names = listed.split(b"\0")[:-1]
    return tuple(name.decode(errors="replace") for name in names[:MOST_UNTRACKED])


def _git(*arguments: str) -> bytes | None:
    """git's output; None if it fails or is too slow."""
    command = ["git", "--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
