"""Bytes from the network are what they say, or are refused before any of them is used."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.config.schema import LearnerConfig, SamplingConfig
from sfactory.layout import Layout
from sfactory.messages import ExtrasRefused, ToMain
from sfactory.remote.frames import BadFrame, Kind, ReportQueue, SlotFormat, most_bytes
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting import Counting

SPEC = EnvSpec.of_spaces(Counting().observation_space, Counting().action_space)
SAMPLING = SamplingConfig(num_workers=1, num_envs_per_worker=3, worker_num_splits=1, rollout=4)
LAYOUT = Layout.plan(SAMPLING, LearnerConfig(batch_size=12), "local", state_size=2)
FORMAT = SlotFormat(SPEC, LAYOUT)


def packed(**changed: object) -> memoryview:
    """A slot with other values in the first place of some fields."""
    buffer = TrajectoryBuffer(SPEC, LAYOUT)
    arrays = buffer.arrays(1)
    rng = np.random.default_rng(0)
    for name, array in arrays.items():
        high = 2 if array.dtype == bool else 7
        array[...] = rng.integers(0, high, array.shape)
        if name in changed:
            array.view(np.uint8 if array.dtype == bool else array.dtype).flat[0] = changed[name]
    return memoryview(FORMAT.pack(arrays))


def test_a_slot_arrives_as_it_was() -> None:
    buffer = TrajectoryBuffer(SPEC, LAYOUT)
    arrays = buffer.arrays(0)
    for number, array in enumerate(arrays.values()):
        array[...] = np.arange(array.size).reshape(array.shape) % 2 + (0 if array.dtype == bool else number % 5)

    views = FORMAT.unpack(memoryview(FORMAT.pack(arrays)))

    assert list(views) == list(arrays)
    for name, view in views.items():
        assert view.dtype == arrays[name].dtype
        assert np.array_equal(view, arrays[name]), name
        assert not view.flags.writeable


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 2) for name in ("terminated", "truncated", "valid", "is_first")),
        *((name, np.nan) for name in ("obs:obs", "log_prob", "value", "reward", "rnn_states")),
        ("reward", np.inf),
        ("action:action", 7),
        ("action:action", -1),
        ("policy_version", -1),
    ],
)
def test_values_that_no_actor_writes_are_refused(name: str, value: object) -> None:
    assert FORMAT.unpack(packed())
    with pytest.raises(BadFrame, match=name):
        FORMAT.unpack(packed(**{name: value}))


def test_frames_of_a_wrong_size_are_refused() -> None:
    block = packed()
    for wrong in (block[:-1], memoryview(bytes(block) + b"\0"), memoryview(b"")):
        with pytest.raises(BadFrame):
            FORMAT.unpack(wrong)
    message = Kind.TRAJECTORY.message(5, block=b"abc")
    assert Kind.of(message) is Kind.TRAJECTORY
    numbers, rest = Kind.TRAJECTORY.numbers(message[1], 3)
    assert (numbers, bytes(rest)) == ((5,), b"abc")
    counts = Kind.COUNTS.message(2**63 - 1, 7)[1]
    assert Kind.COUNTS.numbers(counts)[0] == (2**63 - 1, 7)
    for content in (b"", counts[:-1], counts + b"\0", counts[8:], b"\xff" * 16):
        with pytest.raises(BadFrame):
            Kind.COUNTS.numbers(content)


@pytest.mark.parametrize("frames", [(), (b"ask",), (b"ask", b"", b""), (b"no such kind", b""), (b"\xff" * 9, b"")])
def test_messages_of_no_kind_are_refused(frames: tuple[bytes, ...]) -> None:
    assert Kind.of((b"ask", b"")) is Kind.ASK
    with pytest.raises(BadFrame):
        Kind.of(frames)


def test_handshakes_that_are_incomplete_or_no_json_are_refused() -> None:
    hello = {"protocol": 1, "version": "1", "env": "x", "name": "y", "joins": True}
    assert Kind.HELLO.values(Kind.HELLO.handshake(**hello)[1]) == hello
    wrong = [{**hello, "protocol": value} for value in ("1", True, -1, 2**63, 10**4000, 1.0, None)]
    wrong += [{**hello, "joins": 1}, *({name: hello[name] for name in hello if name != missing} for missing in hello)]
    contents = [b"", b"\x80\x04.", b"[1]", b"{", b'{"a": NaN}', b"[" * 10_000, b" " * (most_bytes(0) + 1)]
    for content in [*contents, *(Kind.HELLO.handshake(**each)[1] for each in wrong)]:
        with pytest.raises(BadFrame):
            Kind.HELLO.values(content)


def test_reports_that_too_many_others_wait_behind_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    queue, sent = ReportQueue(), list[ToMain]()

    def send(report: ToMain) -> bool:
        sent.append(report)
        return True

    for number in range(1005):
        queue.add(ExtrasRefused(number, "too long"))
    queue.send(lambda report: False)
    assert not caplog.records
    queue.send(send)
    queue.send(send)

    assert sent == [ExtrasRefused(number, "too long") for number in range(5, 1005)]
    assert [record.message[:2] for record in caplog.records] == ["5 "]
