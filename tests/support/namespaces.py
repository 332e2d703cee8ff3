"""Two hosts on this machine: network namespaces with a cable between them, which can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

CARD = "net0"  # the name of the network card of either host
ADDRESSES = ("10.213.7.1", "10.213.7.2")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class TwoHosts:
    """Hosts 0 and 1, which reach each other at ADDRESSES, and nothing else."""

    def __init__(self) -> None:
        self._names = [f"sf{os.getpid()}-{host}" for host in range(2)]
        for name in self._names:
            _ip("netns", "add", name)
        _ip(*f"link add {CARD} netns {self._names[0]} type veth peer name {CARD} netns {self._names[1]}".split())
        for name, address in zip(self._names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", CARD)
            for card in ("lo", CARD):
                _ip("-n", name, "link", "set", card, "up")

    def on(self, host: int) -> tuple[str, ...]:
        """What a command begins with that runs on this host; it then is the same process."""
        return ("ip", "netns", "exec", self._names[host])

    def cut(self) -> None:
        """Take the card of host 1 down: packets are lost without a word, as where a cable is pulled."""
        _ip("-n", self._names[1], "link", "set", CARD, "down")

    def close(self) -> None:
        """Remove both."""
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def two_hosts() -> Iterator[TwoHosts]:
    """Two hosts; skips the test where this user may not make network namespaces."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the command ip")
    try:
        hosts = TwoHosts()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this system makes no network namespaces: {error.stderr.decode()}")
    yield hosts
    hosts.close()
