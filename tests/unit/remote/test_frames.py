"""Bytes from the network are what they say, or are refused before any of them is used."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.config.schema import LearnerConfig, SamplingConfig
from sfactory.layout import Layout
from sfactory.remote.frames import (
    HELLO,
    MOST_JSON,
    BadFrame,
    Counts,
    Held,
    Kind,
    SlotFormat,
    Version,
    kind_of,
    pack,
    pack_json,
    unpack,
    unpack_json,
)
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
    held, rest = unpack(Held, pack(Held(5)) + b"abc", 3)
    assert (held.publication, bytes(rest)) == (5, b"abc")
    assert unpack(Version, pack(Version(2**64 - 1, 7)))[0] == (2**64 - 1, 7)
    for content in (b"", pack(Counts(1, 2))[:-1], pack(Counts(1, 2)) + b"\0", pack(Held(1))):
        with pytest.raises(BadFrame):
            unpack(Counts, content)


@pytest.mark.parametrize("frames", [(), (b"ask",), (b"ask", b"", b""), (b"no such kind", b""), (b"\xff" * 9, b"")])
def test_messages_of_no_kind_are_refused(frames: tuple[bytes, ...]) -> None:
    assert kind_of((b"ask", b"")) is Kind.ASK
    with pytest.raises(BadFrame):
        kind_of(frames)


def test_handshakes_that_are_incomplete_or_no_json_are_refused() -> None:
    hello = {"protocol": 1, "version": "1", "env": "x", "name": "y", "joins": True}
    assert unpack_json(pack_json(**hello), **HELLO) == hello
    wrong = [{**hello, "protocol": "1"}, {**hello, "joins": 1}, {**hello, "protocol": True}]
    wrong += [{name: value for name, value in hello.items() if name != missing} for missing in hello]
    contents = [b"", b"\x80\x04.", b"[1]", b"{", b'{"a": NaN}', b"[" * 10_000, b" " * (MOST_JSON + 1)]
    for content in [*contents, *(pack_json(**each) for each in wrong)]:
        with pytest.raises(BadFrame):
            unpack_json(content, **HELLO)
