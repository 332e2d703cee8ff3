"""Checks what remote actors need to join a run before anything starts: the secret, the port, the host.

It imports neither torch nor libzmq, so that a command says at once what is wrong.
"""

from __future__ import annotations

import errno
import os
import shlex
import socket
import stat

from sfactory.atomic import opened
from sfactory.config.schema import SamplingConfig
from sfactory.errors import ConfigError
from sfactory.system.optional_packages import required

TOKEN_CHARACTERS = 32
_MOST_TOKEN = 4096
_NEEDED = (
    "the secret that the run and its remote actors share, a copy on each machine: "
    "python -c 'import secrets; print(secrets.token_hex())' prints a first one"
)


def require_joining(sampling: SamplingConfig) -> None:
    """Raise ConfigError if this is a run for remote actors, and none could join."""
    if sampling.remote_actors_port:
        required("zmq", "--remote_actors_port", "remote")
        read_token("remote_actors_token_file", sampling.remote_actors_token_file)
        require_port(sampling.remote_actors_host, sampling.remote_actors_port)


def read_token(flag: str, path: str) -> bytes:
    """The secret in the file that ``flag`` names. ConfigError if it cannot be read, or all users can, or is short."""
    try:
        with open(path, "rb", opener=opened) as file:
            mode, token = os.fstat(file.fileno()).st_mode, file.read(_MOST_TOKEN).strip()
    except (OSError, ValueError) as error:
        raise ConfigError([f"--{flag}={path}: cannot be read: {error}; it has to hold {_NEEDED}"]) from None
    if mode & stat.S_IROTH:
        raise ConfigError([f"--{flag}={path}: every user of this machine can read it: chmod 600 {shlex.quote(path)}"])
    if len(token) < TOKEN_CHARACTERS:
        raise ConfigError(
            [f"--{flag}={path}: holds {len(token)} characters, and needs {TOKEN_CHARACTERS} or more: {_NEEDED}"]
        )
    return token


def require_port(host: str, port: int) -> None:
    """Raise ConfigError if remote actors could not join at this address."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, ValueError) as error:  # a name that cannot be encoded
        other = "; take another --remote_actors_port" if getattr(error, "errno", 0) == errno.EADDRINUSE else ""
        raise ConfigError(
            [
                f"--remote_actors_port={port}: cannot be listened at on --remote_actors_host={host}, by IPv4, as "
                f"remote actors join: {error}{other}"
            ]
        ) from None


def require_host(address: str) -> None:
    """Raise ConfigError if no machine is known by the name in HOST:PORT."""
    host = address.partition(":")[0]
    try:
        socket.getaddrinfo(host, None, socket.AF_INET)
    except (OSError, ValueError) as error:  # a name that cannot be encoded
        raise ConfigError(
            [
                f"--connect={address}: no machine of the name {host} is known here by IPv4, as remote actors join "
                f"({error}); give another name or the IPv4 address"
            ]
        ) from None
