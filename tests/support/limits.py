"""Commands that limit what a run may have, and then become it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def one_core(core: int) -> tuple[str, ...]:
    """On one core alone."""
    return _found("taskset", "-c", str(core))


def open_files(soft: int, hard: int) -> tuple[str, ...]:
    """With so many open files at most."""
    return _found("prlimit", f"--nofile={soft}:{hard}")


def small_shm(megabytes: int) -> tuple[str, ...]:
    """With a /dev/shm of that size."""
    return _mounted(f"mount -t tmpfs -o size={megabytes}m sfactory-test /dev/shm")


def container(cgroup: Path) -> tuple[str, ...]:
    """Where the kernel seems to tell of control groups what the files below ``cgroup`` do."""
    return _mounted(f"mount --bind '{cgroup}' /sys/fs/cgroup")


def _mounted(mount: str) -> tuple[str, ...]:
    """In a namespace of its own, where an unprivileged user may mount; skips the test where that is forbidden."""
    command = _found("unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine forbids mounts in a namespace")
    return command


def _found(program: str, *arguments: str) -> tuple[str, ...]:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    return program, *arguments
