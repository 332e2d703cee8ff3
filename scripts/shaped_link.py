"""Trains on two ranks with a slow link between them: which share of the rate remains that they have with a fast one.

    sudo .venv/bin/python scripts/shaped_link.py --seconds 90 --rounds 3

It needs root, iproute2 and taskset. Each rank is in a network namespace of its own, with half of the cores. Once a veth
pair connects them; and once a relay, which holds each packet back for as long as a link of ``--mbit`` and
``--delay_ms`` each way takes (as ``tc qdisc ... netem`` does, which many kernels are built without). Run it on a
machine without other work. Flags of sfactory.train may follow after ``--``. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this may be started as a file and imported as a module
from scripts.command import Command, json_line, split_flags

PORT = 29_511
ADDRESSES = ("10.77.0.1", "10.77.0.2")
START_S = 300.0  # before training, and for the last save
ALL_PROTOCOLS, SOL_PACKET, VNET_HEADER, OUTGOING = 0x0003, 263, 15, 4  # linux/if_packet.h
SENT = 100_000_000  # bytes, to see what the link does
LONGEST = 70_000  # bytes of a packet that the kernel has not cut yet, with its header


def relay(interfaces: Sequence[str], delay_s: float, bytes_per_s: float) -> None:
    """Carry packets between two interfaces, for ever."""
    os.setpriority(os.PRIO_PROCESS, 0, -10)  # the ranks, which keep all cores busy, would add to the delay
    ends = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) for _ in interfaces]
    for end, name in zip(ends, interfaces, strict=True):
        end.setsockopt(SOL_PACKET, VNET_HEADER, 1)  # checksums and segments are left to the last interface
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**26)
        end.bind((name, ALL_PROTOCOLS))
        end.setblocking(False)
    waiting = [collections.deque[tuple[float, bytes]]() for _ in ends]
    free_at = [0.0, 0.0]  # when the link has sent all that came from this end
    print(flush=True)
    while True:
        nearest = min((queue[0][0] for queue in waiting if queue), default=time.monotonic() + 1.0)
        select.select(ends, [], [], max(0.0, nearest - time.monotonic()))
        for number, end in enumerate(ends):
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet, (_, _, kind, *_) = end.recvfrom(LONGEST)
                    if kind != OUTGOING:
                        start = max(time.monotonic(), free_at[number])
                        free_at[number] = start + len(packet) / bytes_per_s
                        waiting[number].append((free_at[number] + delay_s, packet))
            other = ends[1 - number]
            while waiting[number] and waiting[number][0][0] <= time.monotonic():
                packet = waiting[number].popleft()[1]
                with contextlib.suppress(OSError):  # lost, as on a link: its buffer is full, or an end is down
                    other.send(packet)


def ip(*words: str) -> None:
    """Run a command of iproute2."""
    subprocess.run(["ip", *words], check=True, timeout=10)


class Link:
    """Two namespaces with one interface each, which are connected; with a ``shape`` by a relay in a third one."""

    def __init__(self, shape: tuple[float, float] | None) -> None:
        """shape: (delay in s, bytes per s)."""
        self._shape, self._names = shape, [f"sf-{os.getpid()}-{end}" for end in "abr"]
        self._relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Link:
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
        for name in self._names:
            if os.path.exists(f"/run/netns/{name}"):
                ip("netns", "del", name)

    def inside(self, end: int, command: Sequence[str]) -> list[str]:
        """``command``, to be run at that end."""
        return ["ip", "netns", "exec", self._names[end], *command]

    def _connect(self) -> None:
        a, b, middle = self._names
        for name in self._names:
            ip("netns", "add", name)
        if self._shape is None:
            ip("link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b)
        else:
            for end, name in ((0, a), (1, b)):
                ip("link", "add", "wire", "netns", name, "type", "veth", "peer", "name", f"end{end}", "netns", middle)
                ip("-n", middle, "link", "set", f"end{end}", "up")
        for name, address in zip((a, b), ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", name, "link", "set", "lo", "up")
            # Else the kernel starts slowly again after each pause between two meetings.
            ip("netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_slow_start_after_idle=0")
        if self._shape is not None:
            command = [sys.executable, __file__, "--relay", *map(str, self._shape)]
            self._relay = subprocess.Popen(self.inside(2, command), stdout=subprocess.PIPE)
            assert self._relay.stdout is not None
            self._relay.stdout.readline()  # it carries packets from now on


SERVER = f"""
import socket
with socket.create_server(("{ADDRESSES[0]}", {PORT})) as server:
    server.settimeout(60)
    print(flush=True)
    with server.accept()[0] as link:
        link.settimeout(60)
        link.send(link.recv(1))
        left = {SENT}
        while left and (data := link.recv(2**20)):
            left -= len(data)
        link.send(b"!")
"""
CLIENT = f"""
import socket, time
with socket.create_connection(("{ADDRESSES[0]}", {PORT}), timeout=30) as link:
    since = time.monotonic()
    link.send(b"?")
    link.recv(1)
    trip = time.monotonic() - since
    link.sendall(bytes({SENT}))
    link.recv(1)
    mbit = {SENT} * 8e-6 / (time.monotonic() - since - trip)
print(f"round trip {{1e3 * trip:.2f}} ms, {{mbit:.0f}} Mbit/s")
"""


def measured(link: Link) -> str:
    """What the link does, as text."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(link.inside(0, command), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            server.stdout.readline()
            client = link.inside(1, [sys.executable, "-c", CLIENT])
            text = subprocess.run(client, check=True, stdout=subprocess.PIPE, text=True, timeout=90).stdout
        finally:
            server.kill()
    return text.strip()


def train(link: Link, seconds: float, flags: Sequence[str]) -> dict[str, Any]:
    """The result of a run of both ranks."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // 2)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(2):
            mine = ",".join(map(str, cores[rank * share : (rank + 1) * share] or cores))
            torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={rank}"]
            meeting = [f"--master-addr={ADDRESSES[0]}", f"--master-port={PORT}"]
            run = ["-m", "sfactory.train", "--env=CartPole-v1", "--device=cpu", f"--train_dir={folder}/runs"]
            command = [sys.executable, *torchrun, *meeting, *run, f"--train_for_seconds={seconds}", *flags]
            inside = link.inside(rank, ["taskset", "-c", mine, *command])
            started = Command(inside, Path(folder), environment={"GLOO_SOCKET_IFNAME": "wire"})
            ranks.append(stack.enter_context(started))
        for rank in ranks:
            if code := rank.wait(seconds + START_S):
                raise rank.failure(f"ended with {code}")
        return json_line(ranks[0].stdout)


def main() -> None:
    """Run both, as often as asked for, in turn; prints rates, returns and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mbit", type=float, default=1000.0)
    parser.add_argument("--delay_ms", type=float, default=20.0, help="each way")
    parser.add_argument("--sync_every", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=90.0, help="of training, in each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--relay", nargs=2, type=float, metavar=("DELAY_S", "BYTES_PER_S"), help=argparse.SUPPRESS)
    own, own_flags = split_flags(sys.argv[1:])
    arguments = parser.parse_args(own)
    if arguments.relay:
        relay(("end0", "end1"), *arguments.relay)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shape = arguments.delay_ms / 1e3, arguments.mbit * 1e6 / 8
    # Asynchronous collection, which goes on while ranks meet.
    flags = [f"--sync_every={arguments.sync_every}", "--task_defaults=False", "--seed=1"]
    flags += ["--train_for_env_steps=1000000000", *own_flags]
    ratios = []
    for number in range(arguments.rounds):
        rates = {}
        for name, each in (("free", None), ("shaped", shape))[:: -1 if number % 2 else 1]:
            with Link(each) as link:
                about, result = measured(link), train(link, arguments.seconds, flags)
            rates[name] = result["fps"]
            best = result["best_episode_return_mean"]
            print(f"{name}: {about}; {result['fps']:.0f} env steps/s, best return {best:.1f}", flush=True)
        ratios.append(rates["shaped"] / rates["free"])
        print(f"ratio {ratios[-1]:.3f}", flush=True)
    print(f"median of {len(ratios)} ratios: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
