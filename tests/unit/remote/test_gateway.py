"""The gateway lets in who has the secret, takes each trajectory once, and closes connections that send other things."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

import sfactory.remote.link as link_module
from sfactory import __version__
from sfactory.actor.setup import ActorSetup
from sfactory.clock import TIMEOUTS, Every
from sfactory.config.launcher import read_remote_line
from sfactory.config.schema import Config, LearnerConfig, RunConfig, SamplingConfig
from sfactory.errors import ConfigError
from sfactory.layout import GATEWAY, Layout
from sfactory.learner.batcher import Inbox
from sfactory.messages import TO_MAIN, EpisodeEnd, EpisodeExtras, EpisodesDone
from sfactory.process.signals import Interrupted
from sfactory.remote.frames import PROTOCOL, BadFrame, Kind, SlotFormat
from sfactory.remote.gateway import Gateway
from sfactory.remote.joining import read_token, require_host, require_port
from sfactory.remote.link import Link, LinkLost, open_link
from sfactory.remote.sockets import Keys, Listener
from sfactory.remote_actors.host import Host
from sfactory.shared.objects import SharedObjects
from sfactory.shared.slots import SlotState
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting import Counting
from tests.support.processes import eventually

SPEC = EnvSpec.of_spaces(Counting().observation_space, Counting().action_space)
TOKEN, OTHER = b"0123456789abcdef" * 4, b"0123456789abcdeF" * 4
WEIGHTS = 100
ENV = "my_envs:make"


class Served:
    """A gateway that takes its turns in a thread. ``address``: HOST:PORT."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        sampling = SamplingConfig(
            *(0, 3), worker_num_splits=1, rollout=4, remote_actors_port=port, remote_actors_token_file="unused"
        )
        self.config = Config(
            run=RunConfig(env=ENV), sampling=sampling, learner=LearnerConfig(batch_size=12, recurrence=2)
        )
        layout = Layout.plan(sampling, self.config.learner, "local")
        assert layout.actor_names == [GATEWAY]
        self.shared = SharedObjects(SPEC, layout, WEIGHTS)
        self.format = SlotFormat(SPEC, layout)
        self.row = self.shared.status.row(GATEWAY)
        self.inbox = Inbox(0, self.shared, self.shared.status.row("sf-learner-0"))
        self.publish(3)
        self._listener = Listener("127.0.0.1", port, TOKEN, 2**20)
        self.gateway = Gateway(ActorSetup(self.config, self.shared, 0, 1, 0), self.row, self._listener, self.format)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._take_turns)
        self._thread.start()

    def _take_turns(self) -> None:
        while not self._over.is_set():
            self.gateway.turn(0.02)
        self.gateway.end()
        self._listener.close()

    def publish(self, version: int) -> None:
        self.shared.weights[0].publish(np.full(WEIGHTS, version, np.uint8), version)

    def close(self) -> None:
        self._over.set()
        self._thread.join(20)

    def trajectory(self, version: int, reward: float, of_none: int = 0) -> bytes:
        """A slot of 12 steps, of which one is no step; ``of_none``: its version."""
        arrays = {name: np.zeros(shape, dtype) for name, (dtype, *shape) in self.format.shapes.items()}
        arrays["valid"][...] = True
        arrays["valid"][1, 2] = False
        arrays["policy_version"][...] = version
        arrays["policy_version"][1, 2] = of_none
        arrays["reward"][...] = reward
        return self.format.pack(arrays)

    def taken(self, due: int = 0) -> list[float]:
        """Rewards of the trajectories that have reached the learner, ``due`` at least, which frees them."""
        found: list[float] = []
        while (rest := self.inbox.take(20.0 if len(found) < due else 0.2)) is not None:
            assert (rest.slot.reward == rest.slot.reward[0, 0]).all()
            found.append(float(rest.slot.reward[0, 0]))
            self.inbox.free(rest.slot)
        return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.fixture
def link(served: Served) -> Iterator[Link]:
    made = Link(served.address, TOKEN, ENV, WEIGHTS)
    yield made
    made.close()


def receive_until(link: Link, condition: object, weights: SharedWeights | None = None) -> None:
    """Receive until ``condition()`` holds."""
    own = weights or SharedWeights(WEIGHTS)

    def met() -> bool:
        link.receive(own, 0.02)
        return bool(condition())  # type: ignore[operator]

    assert eventually(met, 20.0, 0.0)


def test_trajectories_are_acknowledged_in_order_as_slots_become_free(served: Served, link: Link) -> None:
    assert link.welcome["settings"]["env"] == ENV
    assert link.welcome["settings"]["recurrence"] == 2
    assert "remote_actors_token_file" not in link.welcome["settings"]
    weights, before = SharedWeights(WEIGHTS), served.row.get("env_steps")
    receive_until(link, lambda: weights.publications, weights)
    assert weights.version == 3
    served.publish(4)
    receive_until(link, lambda: weights.version == 4, weights)
    block = np.empty(WEIGHTS, np.uint8)
    weights.read_into(block)
    assert (block == 4).all()

    for number in range(5):  # there are two slots
        link.send_trajectory(served.trajectory(4, number))
    assert eventually(lambda: served.shared.table.counts()[SlotState.READY] == 2, 20.0)
    link.receive(weights, 0.1)
    assert link.taken == 0
    rewards = served.taken(5)
    receive_until(link, lambda: link.taken == 5)

    assert rewards == [0, 1, 2, 3, 4]
    assert served.row.get("env_steps") - before == 5 * 11
    assert served.shared.table.steps_of(0) == served.row.get("env_steps")


def test_weights_that_were_dropped_on_their_way_are_sent_once_more(served: Served, link: Link) -> None:
    weights = SharedWeights(WEIGHTS)
    receive_until(link, lambda: weights.publications, weights)
    link._held = 0  # as if they had not come
    for remote in list(served.gateway._remotes.values()):
        remote.sent_at -= 10 * TIMEOUTS.link
    receive_until(link, lambda: weights.publications == 2, weights)


def test_trajectories_of_newer_weights_than_there_are_are_dropped(
    served: Served, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        link.send_trajectory(served.trajectory(100, 1.0))
    receive_until(link, lambda: link.taken == 2)
    assert served.taken() == []
    (said,) = [text for text in caplog.messages if "is dropped" in text]  # links of other tests may be lost meanwhile
    assert "of update 100, and the run has resumed from an earlier state, now at update" in said


def test_the_version_of_what_is_no_step_does_not_count(served: Served, link: Link) -> None:
    link.send_trajectory(served.trajectory(3, 2.0, of_none=100))
    assert eventually(lambda: served.shared.table.counts()[SlotState.READY] == 1, 20.0)
    assert served.taken() == [2.0]
    receive_until(link, lambda: link.taken == 1)


def test_reports_reach_main_as_those_of_the_gateway(served: Served, link: Link) -> None:
    returns, lengths = np.array([1.5, 2.0]), np.array([3, 4])
    assert link.send_report(EpisodesDone(7, returns, lengths))
    found = eventually_got(served)
    assert (found.actor, found.returns.tolist(), found.lengths.tolist()) == (0, [1.5, 2.0], [3, 4])


def eventually_got(served: Served) -> EpisodesDone:
    for _ in range(100):
        for message in served.shared.actors_to_main.get(0.2):
            assert isinstance(message, EpisodesDone)
            return message
    raise AssertionError("no report came")


def test_messages_that_do_not_fit_close_the_connection_and_no_other(served: Served, link: Link) -> None:
    whole = served.trajectory(3, 0.0)
    bad = [
        (Kind.TRAJECTORY, b""),
        (Kind.TRAJECTORY, b"\0" * 8 + whole[:-1]),
        (Kind.TRAJECTORY, b"\0" * 8 + b"\xff" * len(whole)),
        (Kind.ASK, b"\0" * 7),
        (Kind.REPORT, b""),
        (Kind.REPORT, b"\xff" * 30),
        (Kind.REPORT, TO_MAIN.encode(EpisodesDone(0, np.array([np.nan]), np.array([1])))),
        (Kind.REPORT, TO_MAIN.encode(EpisodesDone(0, np.array([1.0]), np.array([1]), policy=3))),
        (Kind.REPORT, TO_MAIN.encode(EpisodeEnd(0, 0, 1, "[]"))),
        (Kind.REPORT, TO_MAIN.encode(EpisodesDone(0, np.array([1.0]), np.array([-5])))),
        (Kind.REPORT, TO_MAIN.encode(EpisodesDone(0, np.ones(5000), np.ones(5000, np.int64)))),
        (Kind.REPORT, TO_MAIN.encode(EpisodeExtras(0, "x" * 101, np.array([1.0])))),
        (Kind.REPORT, TO_MAIN.encode(EpisodeExtras(0, "x", np.array([np.inf])))),
        (Kind.WEIGHTS, b"\0" * 200),
        (Kind.HELLO, b"{}"),
    ]
    for kind, content in bad:
        other = Link(served.address, TOKEN, ENV, WEIGHTS)
        other._send((kind.frame, content))
        with pytest.raises(ConfigError, match="refuses"):
            receive_until(other, lambda: False)
        other.close()
        receive_until(link, lambda: True)  # each time: a link that asks for nothing is lost after 10 s
    assert served.taken() == []


def test_a_run_that_answers_no_more_is_not_taken_for_a_connection_that_has_ended(served: Served) -> None:
    silent, closed = (Link(served.address, TOKEN, ENV, WEIGHTS) for _ in range(2))
    silent._heard_at -= 10 * TIMEOUTS.link
    silent._ask = Every(1000.0)  # what is not asked is not answered
    with pytest.raises(LinkLost, match=r"is lost: nothing came from it for \d+ s"):
        silent.receive(SharedWeights(WEIGHTS), 0.0)

    closed._is_lost = True
    with pytest.raises(LinkLost, match="is lost: the connection has ended"):
        closed.receive(SharedWeights(WEIGHTS), 0.0)
    for each in (silent, closed):
        each.close()


def test_a_run_says_once_that_it_waits_for_actors_and_again_when_the_last_has_left(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def said() -> list[str]:
        texts = [text for text in caplog.messages if "has joined" in text or "no actor is there" in text]
        return texts[1:] if texts and "no actor" in texts[0] else texts  # the wait before may be said late

    for remote in list(served.gateway._remotes.values()):  # of other tests
        remote.heard_at -= 10 * TIMEOUTS.link
    for _ in range(2):
        assert eventually(lambda: not served.gateway._remotes, 20.0)
        caplog.clear()
        link = Link(served.address, TOKEN, ENV, WEIGHTS)
        assert eventually(lambda: not served.gateway._is_alone, 20.0)
        link.leave()
        assert eventually(lambda: len(said()) > 1, 20.0)
        link.close()
        assert ["no actor" in text for text in said()] == [False, True]
        assert said()[1].endswith("(--learner_starvation_timeout_sec=300.0)")


def test_who_has_another_version_or_env_is_refused_with_the_reason(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--env=my_envs:make"):
        Link(served.address, TOKEN, "CartPole-v1", WEIGHTS)
    monkeypatch.setattr(link_module, "__version__", "0.0.1")
    with pytest.raises(ConfigError, match=r"0\.0\.1"):
        Link(served.address, TOKEN, ENV)


def test_remote_actors_leave_a_run_that_lets_nothing_wait_or_sends_too_much(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(served.gateway, "_window", 0)
        with pytest.raises(BadFrame):
            Link(served.address, TOKEN, ENV, WEIGHTS)
    monkeypatch.setattr(link_module, "_HELLO_S", 2.0)
    monkeypatch.setattr(link_module, "most_bytes", lambda block: 100)
    with pytest.raises(LinkLost):
        Link(served.address, TOKEN, ENV, WEIGHTS)


def test_without_the_secret_nothing_is_read_and_a_caller_with_another_is_named_once(
    served: Served, link: Link, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "_HELLO_S", 1.0)
    for _ in range(2):
        with pytest.raises(LinkLost):
            Link(served.address, OTHER, ENV, WEIGHTS)
        receive_until(link, lambda: True)
    assert eventually(lambda: "its secret is not that of --remote_actors_token_file" in caplog.text, 20.0)
    host, _, port = served.address.partition(":")
    for garbage in (b"\x80\x04\x95" + b"K" * 500, b"\xff" + b"\0" * 8 + b"\x7f" + b"\3\0NULL" + b"\0" * 500, b""):
        with socket.create_connection((host, int(port)), 20) as plain:
            plain.sendall(garbage)
        receive_until(link, lambda: True)
    # A stranger that has the key of the run has none of a remote actor.
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.curve_serverkey = Keys.of(TOKEN, "run").public
    stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
    stranger.connect(f"tcp://{served.address}")
    hello = Kind.HELLO.handshake(protocol=PROTOCOL, version=__version__, env=ENV, name="", joins=True)
    stranger.send_multipart(hello)
    assert stranger.poll(1000) == 0
    context.destroy(0)
    receive_until(link, lambda: True)
    assert served._thread.is_alive()
    # On a busy machine a connection may end before its address is read.
    named = [text for text in caplog.messages if "is refused" in text]
    assert len(named) == len(set(named))
    callers = {"a remote actor, probably at 127.0.0.1,", "a remote actor at an unknown address"}
    assert {text.partition(" is refused")[0] for text in named} <= callers


def test_short_or_missing_secrets_and_used_ports_are_refused(tmp_path: Path, served: Served) -> None:
    file = tmp_path / "token"
    for no_file in (file, tmp_path):
        with pytest.raises(ConfigError, match=r"cannot be read: .*token_hex"):
            read_token("token_file", str(no_file))
    file.write_text("short\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token("token_file", str(file))
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="5 characters"):
        read_token("token_file", str(file))
    file.write_bytes(TOKEN + b"\n")
    assert read_token("token_file", str(file)) == TOKEN
    host, _, port = served.address.partition(":")
    with pytest.raises(ConfigError, match=r"cannot be listened at.*take another --remote_actors_port"):
        require_port(host, int(port))
    with pytest.raises(ConfigError, match="cannot be listened at"):
        require_port("a" * 70, int(port))
    with pytest.raises(ConfigError, match=r"--remote_actors_host=::1, by IPv4"):
        require_port("::1", int(port))
    require_host(served.address)
    with pytest.raises(ConfigError, match=r"--connect=a+:5555: no machine of the name a+ is known here by IPv4"):
        require_host(f"{'a' * 70}:5555")


def test_a_line_says_once_that_no_run_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def silent() -> Link:
        raise LinkLost("no run answers at learner:5555")

    monkeypatch.setattr(link_module, "_HELLO_S", 0.0)
    monkeypatch.setattr(link_module, "BLOCK_S", 0.01)
    caplog.set_level(logging.INFO)
    with pytest.raises(LinkLost, match=r"no run answers at learner:5555, for 0.1 s \(--reconnect_sec\)"):
        open_link(silent, 0.1)
    assert caplog.text.count("no answer yet; trying for 0.1 s (--reconnect_sec)") == 1


def test_a_signal_while_a_lost_link_is_closed_ends_remote_actors_all_the_same() -> None:
    class Closing:
        def close(self) -> None:
            raise Interrupted

        def leave(self) -> None:
            raise zmq.ZMQError(zmq.ENOTSOCK)  # as a socket that is closed

    ended: list[bool] = []
    workers: Any = SimpleNamespace(close=lambda: ended.append(True))
    host = Host.__new__(Host)  # which would start processes
    host._link, host._workers = Closing(), workers  # type: ignore[assignment]

    with pytest.raises(Interrupted):
        host._drop(LinkLost("nothing came from it for 10 s"))
    host.close()

    assert ended == [True]


@pytest.mark.parametrize("address", ["", "learner", "learner:", "learner:0", "learner:65536", "a b:5555"])
def test_addresses_that_no_run_can_have_are_refused(address: str) -> None:
    argv = ["--token_file=secret", f"--env={ENV}"]
    assert read_remote_line([*argv, "--connect=learner_1.local:65535"]).connect == "learner_1.local:65535"
    with pytest.raises(ConfigError, match="must be HOST:PORT of the run, with a port of 1 to 65535"):
        read_remote_line([*argv, f"--connect={address}"])
