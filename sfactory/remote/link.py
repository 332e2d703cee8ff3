"""The link of remote actors to their run, from the handshake to its loss. See NOTE [Remote protocol]."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import zmq

from sfactory import __version__
from sfactory.clock import BLOCK_S, TIMEOUTS, Deadline, Every, now
from sfactory.errors import ConfigError, SFactoryError, clean
from sfactory.messages import TO_MAIN, ToMain
from sfactory.remote.frames import PROTOCOL, BadFrame, Kind, most_bytes
from sfactory.remote.sockets import Connection
from sfactory.shared.weights import SharedWeights

_ASK_S = 0.1  # between two questions for newer weights, which are signs of life, too
_HELLO_S = 5.0  # for an answer, before another try

_log = logging.getLogger(__name__)


class LinkLost(SFactoryError):
    """The connection to the run was refused, has ended, or is silent."""


class Link:
    """A connection to a run, which has welcomed this machine. ``close`` it.

    welcome: what the run has said. taken: trajectories that it has acknowledged. env_steps: that it has trained on.
    ended: the session of the run is over.
    """

    def __init__(self, address: str, token: bytes, env: str, weight_bytes: int = 0) -> None:
        """weight_bytes: 0 asks for settings alone. Raises LinkLost, BadFrame, and ConfigError if the run refuses."""
        self._address, self._connection = address, Connection(address, token, most_bytes(weight_bytes))
        self._weight_bytes = weight_bytes
        self._held, self.taken, self.env_steps, self.ended = 0, 0, 0, False
        self._heard_at, self._ask, self._is_lost = now(), Every(_ASK_S), False
        name = f"{socket.gethostname()}:{os.getpid()}"
        hello = dict(zip(Kind.HELLO.types, (PROTOCOL, __version__, env, name, weight_bytes > 0), strict=True))
        try:
            self._send(Kind.HELLO.handshake(**hello))
            self.welcome = self._welcome()
        except BaseException:
            self.close()
            raise

    def _welcome(self) -> dict[str, Any]:
        deadline = Deadline(_HELLO_S)
        while not deadline.passed and not self._connection.is_lost:
            if not self._connection.socket.poll(int(1000 * BLOCK_S / 10)):
                continue
            kind, content = self._next()
            if kind is Kind.WELCOME:
                welcome = kind.values(content)
                if not welcome["window"]:  # nothing would ever be sent
                    raise BadFrame(f"{self._address} lets no trajectory wait")
                return welcome
            self._refuse(kind, content)
        raise LinkLost(f"no run answers at {self._address}")

    def send_trajectory(self, block: bytes) -> None:
        """Send the bytes of a slot."""
        self._send(Kind.TRAJECTORY.message(self._held, block=block))

    def send_report(self, report: ToMain) -> bool:
        """Send a message to the run's main process; False if the link is lost."""
        return self._send(Kind.REPORT.message(block=TO_MAIN.encode(report)))

    def receive(self, weights: SharedWeights, timeout: float) -> None:
        """Take what has come, waiting up to ``timeout`` seconds for the first message; newer weights are published.

        Raises LinkLost, BadFrame, and ConfigError if the run refuses to go on.
        """
        if self._ask.due():
            self._send(Kind.ASK.message(self._held))
        # Before messages are taken: the last one of a run, END, comes just before the connection ends.
        lost = self._is_lost or self._connection.is_lost
        ready = self._connection.socket.poll(int(1000 * timeout))
        while ready and not self.ended:
            kind, content = self._next()
            if kind is Kind.COUNTS:
                (self.taken, self.env_steps), _ = kind.numbers(content)
            elif kind is Kind.WEIGHTS:
                (held, version), block = kind.numbers(content, self._weight_bytes)
                weights.publish(np.frombuffer(block, np.uint8), version)
                self._held = held
            elif kind is Kind.END:
                self.ended = True
            else:
                self._refuse(kind, content)
            ready = self._connection.socket.poll(0)
        silent_s = now() - self._heard_at
        if not self.ended and (lost or silent_s > TIMEOUTS.link):
            cause = "the connection has ended" if lost else f"nothing came from it for {silent_s:.0f} s"
            raise LinkLost(f"the link to {self._address} is lost: {cause}")

    def leave(self) -> None:
        """Say that this machine leaves."""
        self._send(Kind.BYE.message())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _next(self) -> tuple[Kind, bytes]:
        frames = self._connection.socket.recv_multipart()
        self._heard_at = now()
        return Kind.of(frames), frames[1]

    def _refuse(self, kind: Kind, content: bytes) -> None:
        """Raise what a message means that ends the link."""
        if kind is Kind.LOST:
            raise LinkLost(f"the run at {self._address} had given this machine up")
        if kind is Kind.REFUSED:
            raise ConfigError([f"{self._address} refuses: {clean(kind.values(content)['reason'])}"])
        raise BadFrame(f"{self._address} sent a message of the kind {kind.name} out of turn")

    def _send(self, message: tuple[bytes, bytes]) -> bool:
        try:
            self._connection.socket.send_multipart(message, zmq.NOBLOCK)
        except zmq.Again:
            self._is_lost = True  # ``receive`` says so, once it has read what came before
        return not self._is_lost


def open_link(open_once: Callable[[], Link], within_s: float, meanwhile: Callable[[], None] = lambda: None) -> Link:
    """``open_once()``, tried again while it raises LinkLost, which passes after ``within_s`` seconds.

    meanwhile: called between two tries. A line says after some seconds that it is still tried.
    """
    deadline, silence = Deadline(within_s), Deadline(_HELLO_S)
    while True:
        try:
            return open_once()
        except LinkLost as error:
            if deadline.passed:
                raise LinkLost(
                    f"{error}, for {within_s:g} s (--reconnect_sec): is it the address of a run with "
                    "--remote_actors_port, can it be reached from here, and has it the same secret?"
                ) from None
            if silence.passed:
                silence = Deadline(float("inf"))  # once
                _log.info("no answer yet; trying for %g s (--reconnect_sec)", within_s)
        meanwhile()
        time.sleep(min(BLOCK_S, deadline.left))


def same_run(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether two welcomes are of runs that the same actors can work for."""
    return all(before[name] == after[name] for name in Kind.WELCOME.types if name not in ("seed", "window"))
