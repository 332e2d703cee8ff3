"""Messages survive their way through bytes, and bytes that are no message are errors."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactory.messages import (
    MAX_EPISODES_PER_REPORT,
    MAX_REASON_CHARS,
    MAX_REPORT_BYTES,
    MAX_STAT_NAME_CHARS,
    TO_ACTOR,
    TO_LEARNER,
    TO_MAIN,
    TO_POLICY,
    ActReply,
    ActRequest,
    Codec,
    EpisodeExtras,
    EpisodesDone,
    EpisodeTotals,
    EvaluationPart,
    ExtrasRefused,
    LearnerTimes,
    PolicyLag,
    SlotFreed,
    TrainStats,
    TrajectoryReady,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_STAT_NAME_CHARS)
U16, U32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False)
LAG = st.builds(PolicyLag, *[st.none() | FLOAT] * 3)
TOTALS = st.builds(EpisodeTotals, U32, U32, FLOAT, FLOAT, FLOAT, I64, U32, FLOAT)
FIXED = st.one_of(
    st.builds(ActRequest, U16, U16, U32, U32, st.integers(0, 1), U16).map(lambda m: (TO_POLICY, m)),
    st.builds(ActReply, U16, U32, U16).map(lambda m: (TO_ACTOR, m)),
    st.builds(SlotFreed, U32).map(lambda m: (TO_ACTOR, m)),
    st.builds(TrajectoryReady, U16, U32).map(lambda m: (TO_LEARNER, m)),
    st.builds(EvaluationPart, U16, U32, I64, TOTALS).map(lambda m: (TO_MAIN, m)),
    st.builds(LearnerTimes, U16, *[FLOAT] * (len(LearnerTimes._fields) - 1)).map(lambda m: (TO_MAIN, m)),
    st.builds(TrainStats, U16, *[FLOAT] * (len(TrainStats._fields) - 3), LAG, LAG).map(lambda m: (TO_MAIN, m)),
)


@given(FIXED)
def test_fixed_messages_survive_the_way_through_bytes(pair: tuple[Codec[Any], Any]) -> None:
    codec, message = pair

    decoded = codec.decode(codec.encode(message))

    assert decoded == message
    assert type(decoded) is type(message)
    assert len(codec.encode(message)) <= codec.max_fixed_bytes


@given(actor=U16, episodes=st.lists(st.tuples(FLOAT, st.integers(0, 2**63 - 1)), max_size=50))
def test_episodes_survive_the_way_through_bytes_bit_by_bit(actor: int, episodes: list[tuple[float, int]]) -> None:
    returns = np.array([episode[0] for episode in episodes], np.float64)
    lengths = np.array([episode[1] for episode in episodes], np.int64)

    decoded = TO_MAIN.decode(TO_MAIN.encode(EpisodesDone(actor, returns, lengths)))

    assert isinstance(decoded, EpisodesDone)
    assert decoded.actor == actor
    assert decoded.returns.tobytes() == returns.tobytes()
    assert decoded.lengths.tolist() == lengths.tolist()


def test_the_largest_report_has_the_size_its_ring_is_made_for() -> None:
    count = MAX_EPISODES_PER_REPORT

    data = TO_MAIN.encode(EpisodesDone(0, np.zeros(count), np.zeros(count, np.int64)))

    assert len(data) == MAX_REPORT_BYTES


@given(actor=U16, name=TEXT, values=st.lists(FLOAT, max_size=50))
def test_extra_statistics_survive_the_way_through_bytes_bit_by_bit(actor: int, name: str, values: list[float]) -> None:
    numbers = np.array(values, np.float64)

    decoded = TO_MAIN.decode(TO_MAIN.encode(EpisodeExtras(actor, name, numbers)))

    assert isinstance(decoded, EpisodeExtras)
    assert (decoded.actor, decoded.name) == (actor, name)
    assert decoded.values.tobytes() == numbers.tobytes()


@given(actor=U16, reason=TEXT)
def test_why_statistics_were_refused_survives_the_way_through_bytes(actor: int, reason: str) -> None:
    message = ExtrasRefused(actor, reason)

    assert TO_MAIN.decode(TO_MAIN.encode(message)) == message


def test_the_longest_texts_fit_into_the_ring_that_is_made_for_reports() -> None:
    name, reason = "\U0001f600" * MAX_STAT_NAME_CHARS, "\U0001f600" * MAX_REASON_CHARS

    extras = TO_MAIN.encode(EpisodeExtras(0, name, np.zeros(MAX_EPISODES_PER_REPORT)))
    refused = TO_MAIN.encode(ExtrasRefused(0, reason))

    assert len(extras) == 11 + 4 * 100 + 8 * 4096
    assert len(refused) == 3 + 4 * 300
    assert max(len(extras), len(refused)) <= MAX_REPORT_BYTES


@pytest.mark.parametrize("cut", [1, 10, 11, 15, 16, 24, 31])
def test_truncated_and_overlong_extra_statistics_are_errors(cut: int) -> None:
    encoded = TO_MAIN.encode(EpisodeExtras(1, "kills", np.ones(2)))
    assert len(encoded) == 11 + 5 + 2 * 8

    for broken in (encoded[:cut], encoded + b"\0"):
        with pytest.raises((ValueError, struct.error)):
            TO_MAIN.decode(broken)


@given(FIXED, st.data())
def test_truncated_and_overlong_bytes_are_errors(pair: tuple[Codec[Any], Any], data: st.DataObject) -> None:
    codec, message = pair
    encoded = codec.encode(message)
    cut = data.draw(st.integers(0, len(encoded) - 1))

    for broken in (encoded[:cut], encoded + b"\0"):
        with pytest.raises((ValueError, struct.error)):
            codec.decode(broken)


@pytest.mark.parametrize("cut", [1, 8, 9, 10, 24, 40])
def test_truncated_episodes_are_errors(cut: int) -> None:
    encoded = TO_MAIN.encode(EpisodesDone(1, np.ones(2), np.ones(2, np.int64)))
    assert len(encoded) == 9 + 2 * 16

    with pytest.raises((ValueError, struct.error)):
        TO_MAIN.decode(encoded[:cut])


@pytest.mark.parametrize("codec", [TO_POLICY, TO_ACTOR, TO_LEARNER, TO_MAIN])
def test_unknown_tags_are_errors(codec: Codec[Any]) -> None:
    for data in (b"", b"\xff", b"\x07" + bytes(200)):
        with pytest.raises(ValueError, match="unknown tag"):
            codec.decode(data)


def test_a_message_for_someone_else_is_refused() -> None:
    with pytest.raises(KeyError):
        TO_POLICY.encode(ActReply(0, 0))  # type: ignore[arg-type]


def test_a_number_that_does_not_fit_is_refused_and_not_cut() -> None:
    with pytest.raises(struct.error):
        TO_ACTOR.encode(SlotFreed(2**32))


def test_a_codec_decodes_alike_in_another_process() -> None:
    # What a child gets is the codec's pickle.
    twin: Codec[Any] = pickle.loads(pickle.dumps(TO_ACTOR))

    assert twin.decode(TO_ACTOR.encode(SlotFreed(9))) == SlotFreed(9)
    assert twin.decode(TO_ACTOR.encode(ActReply(1, 2))) == ActReply(1, 2)
