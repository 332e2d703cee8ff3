"""The gateway: the actor of a run that gets its trajectories from other machines.

For the rest of the run it is an actor as any other: it owns slots, fills and announces them, and is replaced if it
dies. It steps no envs: remote actors (``sfactory.remote_actors``) send what they have collected, see
NOTE [Remote protocol]. If the learner is behind, no slot is free, and trajectories wait here, a window of each remote
actor at most; then they wait there.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from dataclasses import dataclass

import numpy as np
import zmq

from sfactory import __version__
from sfactory.actor.base_actor import TrajectoryOutput
from sfactory.actor.setup import ActorSetup
from sfactory.clock import BLOCK_S, TIMEOUTS, Deadline, now
from sfactory.config.flags import all_flags, assigned, values_of
from sfactory.errors import clean
from sfactory.layout import LEARNERS
from sfactory.messages import (
    MAX_REASON_CHARS,
    MAX_REPORT_BYTES,
    MAX_STAT_NAME_CHARS,
    TO_MAIN,
    EpisodeExtras,
    EpisodesDone,
    ExtrasRefused,
    SlotFreed,
)
from sfactory.remote.frames import PROTOCOL, BadFrame, Kind, ReportQueue, SlotFormat, most_bytes
from sfactory.remote.joining import read_token
from sfactory.remote.sockets import Listener
from sfactory.seeds import ENV_SEED_BITS, Branch, seed_at
from sfactory.shared.status import State, StatusRow, Stopwatch
from sfactory.shared.trajectories import Array, Slot

_log = logging.getLogger(__name__)

# What remote actors need to know of a run: how envs are made and stepped, and the network that acts.
SECTIONS = ("sampling", "wrappers", "model")
FLAGS = ("env", "env_kwargs", "recurrence", "batch_size", "num_batches_per_epoch", "num_batches_to_accumulate")
OWN_FLAGS = ("remote_actors_port", "remote_actors_host", "remote_actors_token_file")  # of the run alone

_MOST_REMOTES = 1024
_WINDOW_BYTES = 2**26  # of the trajectories of a remote actor that are not acknowledged
_MOST_MESSAGES = 256  # that are read in a turn
_NAME_CHARACTERS = 80
_WEIGHTS_PER_S = 10**7  # bytes of weights to a remote actor
_END_S = 1.0  # at the end, for remote actors to leave
_FULL_S = 0.005  # between two looks for a free slot


@dataclass
class _Remote:
    """A remote actor that has joined, with several processes. ``address``: of its link.

    heard_at: when its last message came. held, sent: publication of the weights that it has, and that were sent to it,
    at ``sent_at``. taken, waiting: trajectories that are acknowledged, and that are not yet. has_dropped: whether one
    was dropped.
    """

    name: str
    address: bytes
    heard_at: float
    held: int = 0
    sent: int = 0
    sent_at: float = 0.0
    taken: int = 0
    waiting: int = 0
    has_dropped: bool = False


def run_gateway(setup: ActorSetup, row: StatusRow) -> None:
    """The main function of the gateway's process: receive until a stop is ordered."""
    sampling = setup.config.sampling
    token = read_token("remote_actors_token_file", sampling.remote_actors_token_file)
    slots = SlotFormat(setup.shared.spec, setup.shared.layout)
    address = sampling.remote_actors_host, sampling.remote_actors_port
    listener = Listener(*address, token, most_bytes(slots.nbytes))
    try:
        gateway = Gateway(setup, row, listener, slots)
        row.set("state", State.RUNNING)
        while not setup.shared.control.stopping:
            gateway.turn(BLOCK_S)
        gateway.end()
    finally:
        listener.close()


class Gateway:
    """Takes trajectories of remote actors into slots, and sends them weights."""

    def __init__(self, setup: ActorSetup, row: StatusRow, listener: Listener, slots: SlotFormat) -> None:
        self._setup, self._row, self._format = setup, row, slots
        self._listener, self._socket = listener, listener.socket
        self._shared, self._inbox = setup.shared, setup.inbox
        self._output = TrajectoryOutput(setup)
        buffer, own = self._shared.trajectories, self._shared.table.slots_of(setup.actor)
        self._arrays = {index: buffer.arrays(index) for index in own}
        self._unfreed = {index: deque[_Remote]() for index in own}  # whose trajectories are, or were, in each slot
        # As many as there are slots must be possible: a dataset may take that many before it frees one.
        self._window = max(len(own), _WINDOW_BYTES // slots.nbytes)
        self._weights = self._shared.weights[0]
        self._message: tuple[int, tuple[bytes, bytes]] = (0, (b"", b""))  # the newest publication that was read
        self._remotes: dict[bytes, _Remote] = {}
        self._greeted = 0
        self._queue: deque[tuple[_Remote, dict[str, Array]]] = deque()  # trajectories that wait for a slot
        self._reports = ReportQueue()
        self._watch, self._is_alone = Stopwatch(row), not self._shared.layout.local_actors
        sampling = setup.config.sampling
        self._place = f"{sampling.remote_actors_host}:{sampling.remote_actors_port}"
        _log.info("remote actors can join at %s%s", self._place, "; the run waits for one" if self._is_alone else "")

    def turn(self, timeout: float) -> None:
        """Receive what has come, waiting up to ``timeout`` seconds for the first message, and fill free slots."""
        self._watch.before_wait()
        self._listener.wait(_FULL_S if any(self._unfreed.values()) else timeout)
        self._watch.after_wait()
        for _ in range(_MOST_MESSAGES):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._receive(*frames)
        self._acknowledge()
        self._fill_slots()
        self._reports.send(self._shared.actors_to_main.try_put)
        self._look_for_lost()

    def end(self) -> None:
        """The session is over: say so to all, and wait for their answers.

        A connection that is closed with messages unread may lose those that were sent.
        """
        for remote in self._remotes.values():
            self._send(remote.address, Kind.END.message())
        patience = Deadline(_END_S)
        while self._remotes and not patience.passed:
            if self._socket.poll(int(1000 * patience.left)):
                self._receive(*self._socket.recv_multipart())

    def _receive(self, address: bytes, *frames: bytes) -> None:
        remote = self._remotes.get(address)
        try:
            kind = Kind.of(frames)
            if kind is Kind.HELLO:
                self._welcome(address, frames[1])
            elif remote is None:  # given up, or said BYE
                self._send(address, Kind.LOST.message())
            else:
                remote.heard_at = now()
                self._handle(remote, kind, frames[1])
        except BadFrame as error:
            name = "a remote actor" if remote is None else remote.name
            _log.warning("%s sent %s: its connection is closed", name, clean(str(error)))
            self._send(address, Kind.REFUSED.handshake(reason=f"the run got {error}"))
            self._forget(address)

    def _handle(self, remote: _Remote, kind: Kind, content: bytes) -> None:
        if kind is Kind.ASK:
            (remote.held,), _ = kind.numbers(content)
            self._answer(remote)
        elif kind is Kind.TRAJECTORY:
            (remote.held,), block = kind.numbers(content, self._format.nbytes)
            if remote.waiting >= self._window:
                raise BadFrame(f"more than {self._window} trajectories without an answer")
            self._queue.append((remote, self._format.unpack(block)))
            remote.waiting += 1
        elif kind is Kind.REPORT:
            self._report(content)
        elif kind is Kind.BYE:
            self._forget(remote.address)
            _log.info("%s has left; %d are there", remote.name, len(self._remotes))
        else:
            raise BadFrame(f"a message of the kind {kind.name}, which only a run sends")

    def _welcome(self, address: bytes, content: bytes) -> None:
        """Answer HELLO: with the settings of the run, or why the remote actor cannot join."""
        hello = Kind.HELLO.values(content)
        reason, env = "", self._setup.config.run.env
        if (hello["protocol"], hello["version"]) != (PROTOCOL, __version__):
            reason = f"the run has sfactory {__version__}, this machine {hello['version']}: install the same"
        elif hello["env"] != env:
            reason = f"the run trains {assigned('env', env)}, not {assigned('env', hello['env'])}: give the same"
        elif len(self._remotes) >= _MOST_REMOTES:
            reason = f"{_MOST_REMOTES} remote actors have joined, and no more can: start fewer, with more --num_workers"
        if reason:
            self._send(address, Kind.REFUSED.handshake(reason=clean(reason)))
            return
        setup, values, flags = self._setup, values_of(self._setup.config), all_flags()
        known = [name for name, flag in flags.items() if (flag.section in SECTIONS or name in FLAGS)]
        welcome = {
            "settings": {name: values[name] for name in known if name not in OWN_FLAGS},
            "spec": repr(self._shared.spec),
            "shapes": self._format.shapes,
            "weight_bytes": self._weights.nbytes,
            "envs": self._shared.layout.envs,
            "window": self._window,
            "seed": seed_at(
                setup.seed, Branch.REMOTE, setup.generation, setup.attempt, self._greeted, bits=ENV_SEED_BITS
            ),
        }
        self._greeted += 1
        self._send(address, Kind.WELCOME.handshake(**welcome))
        if hello["joins"]:
            name = clean(hello["name"], _NAME_CHARACTERS)
            self._forget(address)
            self._remotes[address] = _Remote(name, address, now())
            _log.info("%s has joined; %d are there", name, len(self._remotes))

    def _report(self, content: bytes) -> None:
        """Pass a message to main on, as one of this actor."""
        try:
            message = TO_MAIN.decode(content)
        except (ValueError, struct.error) as error:
            raise BadFrame(f"a report that cannot be read: {error}") from None
        if len(content) > MAX_REPORT_BYTES:
            raise BadFrame(f"a report of {len(content)} bytes, more than {MAX_REPORT_BYTES}")
        if not isinstance(message, EpisodesDone | EpisodeExtras | ExtrasRefused):
            raise BadFrame("a report that no remote actor makes")
        if not isinstance(message, ExtrasRefused) and message.policy:
            raise BadFrame(f"a report of policy {message.policy}")
        if isinstance(message, ExtrasRefused):
            message = message._replace(reason=clean(message.reason, MAX_REASON_CHARS))
        elif isinstance(message, EpisodeExtras):
            if len(message.name) > MAX_STAT_NAME_CHARS or not np.isfinite(message.values).all():
                raise BadFrame("a statistic whose name is too long, or with values that are not finite")
        else:
            if not np.isfinite(message.returns).all() or (message.lengths < 0).any():
                raise BadFrame("a return that is not finite, or a negative length")
            self._row.add("finished_episodes", len(message.returns))
        self._reports.add(message._replace(actor=self._setup.actor))

    def _acknowledge(self) -> None:
        """Acknowledge trajectories once the learner has freed their slots: so their actors wait as those here do."""
        for message in self._inbox.get(0):
            assert isinstance(message, SlotFreed), "an actor that asks for no action gets none"
            if self._unfreed[message.slot]:  # else a process before this one had filled it
                self._count_taken(self._unfreed[message.slot].popleft())

    def _count_taken(self, remote: _Remote) -> None:
        remote.taken += 1
        remote.waiting -= 1
        if self._remotes.get(remote.address) is remote:  # else it was lost, or has said HELLO once more
            self._answer(remote)

    def _fill_slots(self) -> None:
        """Copy waiting trajectories into free slots, in the order they came."""
        while self._queue:
            remote, views = self._queue[0]
            # Rows in which no policy acts keep the version of what was in them before.
            version = int(np.max(views["policy_version"], where=views["valid"], initial=0))
            if version > self._weights.version:
                self._queue.popleft()
                self._drop(remote, version)
            elif (slot := self._free_slot()) is not None:
                self._queue.popleft()
                self._unfreed[slot.index].append(remote)
                self._fill(slot, views)
            else:
                return

    def _drop(self, remote: _Remote, version: int) -> None:
        """A trajectory is of a later state of the run than that which it has resumed from."""
        if not remote.has_dropped:
            remote.has_dropped = True
            _log.warning(
                "a trajectory of %s is of update %d, and the run has resumed from an earlier state, now at update %d: "
                "it is dropped, and so are others like it",
                remote.name,
                version,
                self._weights.version,
            )
        self._count_taken(remote)

    def _free_slot(self) -> Slot | None:
        return next(filter(None, map(self._output.take, range(self._shared.layout.splits))), None)

    def _fill(self, slot: Slot, views: dict[str, Array]) -> None:
        for name, array in self._arrays[slot.index].items():
            array[...] = views[name]
        valid = slot.valid if slot.counts_env_step is None else slot.counts_env_step
        # As in an actor, a step counts once it is in a slot; if this process dies now, the slot is lost, and counted.
        self._shared.table.count_steps(slot.index, int(slot.valid.sum()))
        self._row.count_env_steps(int(valid.sum()))
        self._row.enter_ring()
        self._output.send(slot, (0,))
        self._row.leave_ring()

    def _answer(self, remote: _Remote) -> None:
        """Say how far the run is, and send newer weights, unless some are under way."""
        env_steps = int(self._shared.status.total("run_env_steps", LEARNERS))
        self._send(remote.address, Kind.COUNTS.message(remote.taken, env_steps))
        since_s = now() - remote.sent_at
        # A ROUTER drops what a remote actor is too slow for, without a word: then they are sent once more.
        may_send = remote.sent == remote.held or since_s > TIMEOUTS.link
        if self._weights.publications > remote.held and may_send and since_s > self._weights.nbytes / _WEIGHTS_PER_S:
            if self._message[0] != self._weights.publications:
                block = np.empty(self._weights.nbytes, np.uint8)
                publication, version = self._weights.read_into(block)
                self._message = publication, Kind.WEIGHTS.message(publication, version, block=block.tobytes())
            remote.sent, message = self._message
            remote.sent_at = now()
            self._send(remote.address, message)

    def _look_for_lost(self) -> None:
        for remote in list(self._remotes.values()):
            silent_s = now() - remote.heard_at
            if silent_s > TIMEOUTS.link:
                self._forget(remote.address)
                _log.warning(
                    "%s is lost: nothing came from it for %.0f s; %d are there",
                    *(remote.name, silent_s, len(self._remotes)),
                )
        was_alone, self._is_alone = self._is_alone, not (self._remotes or self._shared.layout.local_actors)
        if self._is_alone and not was_alone:
            bound = assigned(
                "learner_starvation_timeout_sec", self._setup.config.learner.learner_starvation_timeout_sec
            )
            _log.warning("no actor is there; the run waits for one that joins at %s (%s)", self._place, bound)

    def _forget(self, address: bytes) -> None:
        """Remove a remote actor, with what it has sent that is not acknowledged."""
        remote = self._remotes.pop(address, None)
        if remote is not None and remote.waiting:
            self._queue = deque(each for each in self._queue if each[0] is not remote)

    def _send(self, address: bytes, message: tuple[bytes, bytes]) -> None:
        self._socket.send_multipart([address, *message])
