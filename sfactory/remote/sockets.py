"""Opens encrypted connections between a run and remote actors that have the same secret.

Both sides derive the keys of libzmq's CURVE from the secret (Curve25519, as in CurveZMQ): the run accepts only the key
of a remote actor, and remote actors only that of the run. Nothing is read from a connection before that.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
from typing import NamedTuple

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from sfactory.errors import ResourceError

LINGER_S = 1.0  # for the last messages when a socket is closed
_MOST_EVENTS = 256  # that are read in a turn
_MOST_NAMED = 100  # addresses with another secret
_UNKNOWN = "a remote actor at an unknown address"
_IP = (socket.AF_INET, socket.AF_INET6)

_log = logging.getLogger(__name__)


class Keys(NamedTuple):
    """A pair of keys of CURVE, in Z85."""

    public: bytes
    secret: bytes

    @staticmethod
    def of(token: bytes, side: str) -> Keys:
        """The pair of keys of the run, or of remote actors."""
        derived = hmac.digest(token, f"sfactory remote actors: {side}".encode(), hashlib.sha256)
        secret = z85.encode(derived)
        return Keys(zmq.curve_public(secret), secret)


class _OneKey:
    """Accepts one public key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator, with a key of which the other side has proved to have the secret part."""
        return hmac.compare_digest(key, self._key)


class Listener:
    """The run's socket, a ROUTER, which remote actors connect to. ``close`` it."""

    def __init__(self, host: str, port: int, token: bytes, most_bytes: int) -> None:
        """``most_bytes``: of a frame; a longer one closes its connection. Raises ResourceError if it cannot listen."""
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        remote = _OneKey(Keys.of(token, "remote").public)
        self._authenticator.configure_curve_callback(credentials_provider=remote)
        self.socket = self._context.socket(zmq.ROUTER)
        own = Keys.of(token, "run")
        self.socket.curve_server = True
        self.socket.curve_publickey, self.socket.curve_secretkey = own
        self.socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
        # Else the connection of a machine that was cut off would stay for as long as the run.
        self.socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self.socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 60)
        self.socket.setsockopt(zmq.LINGER, int(1000 * LINGER_S))
        watched = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
        self._events, self._poller = self._context.socket(zmq.PAIR), zmq.Poller()
        # Without a limit: libzmq's thread would wait for a reader, and ``close`` for that thread.
        self._events.setsockopt(zmq.RCVHWM, 0)
        self.socket.monitor("inproc://events", int(watched))
        self._events.connect("inproc://events")
        for each in (self.socket, self._events):
            self._poller.register(each, zmq.POLLIN)
        self._callers: dict[int, str] = {}  # addresses by number of the connection
        self._has_other_secret, self._named = False, set[str]()
        try:
            self.socket.bind(f"tcp://{socket.gethostbyname(host)}:{port}")
        except (OSError, zmq.ZMQError) as error:
            self.close()
            raise ResourceError(f"{host}:{port} cannot be listened at for remote actors: {error}") from None

    def wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a message or a caller; one with another secret is named once for its address."""
        if self._events in dict(self._poller.poll(int(1000 * seconds))):
            for _ in range(_MOST_EVENTS):
                if not self._events.poll(0):
                    break
                event = recv_monitor_message(self._events)
                self._look_at(int(event["event"]), int(event["value"]))

    def _look_at(self, event: int, value: int) -> None:
        """A caller that cannot be decrypted is disconnected at once, by the same thread of libzmq."""
        if event == zmq.EVENT_ACCEPTED:
            self._callers[value] = _caller(value)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._has_other_secret = value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
        else:
            caller = self._callers.pop(value, _UNKNOWN)
            if self._has_other_secret and caller not in self._named and len(self._named) < _MOST_NAMED:
                self._named.add(caller)
                secret = "its secret is not that of --remote_actors_token_file"
                _log.warning("%s is refused: %s (said once for each address)", caller, secret)
            self._has_other_secret = False

    def close(self) -> None:
        """Close it, after what was sent has left or LINGER_S are over."""
        self.socket.monitor(None, 0)
        self._events.close(0)
        self.socket.close()
        self._authenticator.stop()
        self._context.term()


def _caller(fd: int) -> str:
    """Whom a connection leads to; it may have ended by now."""
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return _UNKNOWN
    try:
        # Another connection may have got its number meanwhile.
        return f"a remote actor, probably at {borrowed.getpeername()[0]}," if borrowed.family in _IP else _UNKNOWN
    except OSError:
        return _UNKNOWN
    finally:
        borrowed.detach()  # libzmq closes it


class Connection:
    """A remote actor's socket, a DEALER: one connection, which is not made again once it is lost. ``close`` it."""

    def __init__(self, address: str, token: bytes, most_bytes: int) -> None:
        """address: HOST:PORT. most_bytes: as of Listener. Returns at once; errors show in that nothing comes."""
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.curve_serverkey = Keys.of(token, "run").public
        self.socket.curve_publickey, self.socket.curve_secretkey = Keys.of(token, "remote")
        self.socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
        self.socket.setsockopt(zmq.LINGER, int(1000 * LINGER_S))
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        # No bound but the window, and that a silent link is lost: reports of a long interruption are sent at once.
        self.socket.setsockopt(zmq.SNDHWM, 0)
        lost = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self._events = self.socket.get_monitor_socket(int(lost | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED))
        self.socket.connect(f"tcp://{address}")

    @property
    def is_lost(self) -> bool:
        """Whether the connection was refused or has ended."""
        return bool(self._events.poll(0))

    def close(self) -> None:
        """Close it, after what was sent has left or LINGER_S are over."""
        linger_s = 0.0 if self.is_lost else LINGER_S
        self.socket.disable_monitor()
        self._events.close(0)  # an open socket would hold up the end of the context for ever
        self.socket.close(int(1000 * linger_s))
        self._context.term()
