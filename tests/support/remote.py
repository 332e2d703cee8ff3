"""Starts the command ``sfactory.remote_actors`` as a process."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sys
import uuid
from pathlib import Path
from typing import Any

from tests.support.processes import MarkedProgram

TOKEN = "0123456789abcdef" * 4
_PORTS = range(20_000, 32_000)  # below those of connections, and of programs that ask for any port


def token_file(folder: Path) -> Path:
    """A file with TOKEN."""
    path = folder / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


def free_port() -> int:
    """A port of this machine that was free just now, and that the kernel gives to no other program."""
    for _ in range(100):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


class RemoteActors(MarkedProgram):
    """Actors that join the run at a port of this machine. ``close`` them, whatever happens."""

    def __init__(self, folder: Path, port: int, env: str, workers: int = 1, host: str = "127.0.0.1") -> None:
        """Start them at once. ``folder``: holds the token, and takes the outputs."""
        argv = [f"--connect={host}:{port}", f"--token_file={folder / 'token'}", f"--env={env}"]
        argv.append(f"--num_workers={workers}")
        super().__init__(uuid.uuid4().hex, [sys.executable, "-m", "sfactory.remote_actors", *argv], folder)
        self._fork("sfactory.remote_actors", argv)

    def result(self) -> dict[str, Any]:
        """The JSON object of the last line on stdout."""
        assert self.stdout.strip(), self.report("nothing on stdout")
        value: dict[str, Any] = json.loads(self.stdout.strip().splitlines()[-1])
        return value
