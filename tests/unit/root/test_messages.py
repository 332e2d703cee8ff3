"""Messages survive encoding and decoding; other bytes are a message or a known error."""

from __future__ import annotations

import math
import pickle
import re
import struct
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory import messages
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
    Codec,
    EpisodeExtras,
    EpisodesDone,
    ExtrasRefused,
    SlotFreed,
)
from tests.support.mutations import Mutation, mutations

CODECS: dict[str, Codec[Any]] = {"ToPolicy": TO_POLICY, "ToActor": TO_ACTOR, "ToLearner": TO_LEARNER, "ToMain": TO_MAIN}
# Smallest and largest value of the whole numbers of a struct.
RANGES = {"B": (0, 2**8 - 1), "H": (0, 2**16 - 1), "I": (0, 2**32 - 1), "q": (-(2**63), 2**63 - 1)}
MOST_BYTES = 400  # more than any fixed message has


def types_of(name: str) -> tuple[type, ...]:
    """The message types of one union."""
    union = getattr(messages, name)
    return get_args(union) or (union,)


def numbers(code: str) -> st.SearchStrategy[Any]:
    """Every value that a struct's field of that code can hold."""
    return st.floats() if code == "d" else st.integers(*RANGES[code])


def fields_of(layout: struct.Struct) -> list[str]:
    """The codes of a struct's fields, one each, without the tag."""
    counted = re.findall(r"(\d*)([a-zA-Z])", layout.format)
    return [code for count, code in counted for _ in range(int(count or 1))][1:]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
EPISODES = st.lists(st.tuples(numbers("d"), numbers("q")), max_size=30)


def variable(kind: type, data: st.DataObject) -> list[Any]:
    """The fields of a message that has no fixed size, without the actor."""
    reals = st.lists(st.floats(), max_size=30).map(lambda values: np.array(values, np.float64))
    if kind is messages.EpisodesDone:
        episodes = data.draw(EPISODES)
        return [np.array([one for one, _ in episodes], np.float64), np.array([two for _, two in episodes], np.int64)]
    if kind is messages.EpisodeEnd:
        return [data.draw(numbers("H")), data.draw(numbers("I")), data.draw(TEXT)]
    return [data.draw(TEXT), data.draw(reals)] if kind is messages.EpisodeExtras else [data.draw(TEXT)]


def message(kind: type, data: st.DataObject) -> Any:
    """Any message of that type, with all values that its fields can hold."""
    layout = Codec._FORMATS.get(kind)
    if layout is None:
        return kind(data.draw(numbers("H")), *variable(kind, data))
    values = [data.draw(numbers(code)) for code in fields_of(layout)]
    if kind is messages.EvaluationPart:
        values[4:] = [messages.EpisodeTotals(*values[4:])]
    if kind is messages.TrainStats:
        lags = [None if math.isnan(lag) else lag for lag in values[-6:]]
        values[-6:] = [messages.PolicyLag(*lags[:3]), messages.PolicyLag(*lags[3:])]
    return kind(*values)


def bits(value: Any) -> Any:
    """A field in a form that is equal if and only if it is the same, bit by bit."""
    if isinstance(value, np.ndarray):
        return (value.dtype, value.tobytes())
    if isinstance(value, tuple):
        return [bits(each) for each in value]
    return struct.pack("<d", value) if isinstance(value, float) else value


KINDS = [(name, kind) for name in CODECS for kind in types_of(name)]


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=lambda part: getattr(part, "__name__", part))
@given(data=st.data())
@settings(deadline=None)
def test_a_message_of_every_type_comes_back_bit_by_bit(name: str, kind: type, data: st.DataObject) -> None:
    codec = CODECS[name]
    sent = message(kind, data)

    received = codec.decode(codec.encode(sent))

    assert [bits(value) for value in received] == [bits(value) for value in sent]
    assert type(received) is kind


def test_every_message_type_belongs_to_a_channel_and_was_tried() -> None:
    tuples = {kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, tuple)}
    own = {kind for kind in tuples if kind.__module__ == messages.__name__}

    assert {kind for _, kind in KINDS} == own - {messages.EpisodeTotals}  # which is a part of a message


def decoded(codec: Codec[Any], data: bytes, name: str) -> bool:
    """Whether ``data`` is a message, which is one of its receiver's; fails if it is neither that nor a known error."""
    try:
        received = codec.decode(data)
    except (ValueError, struct.error):
        return False
    assert type(received) in types_of(name)
    assert len(codec.encode(received)) == len(data)  # no byte was ignored; a NaN may come back with other bits
    return True


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=lambda part: getattr(part, "__name__", part))
@given(data=st.data(), mutation=mutations(MOST_BYTES))
@settings(max_examples=200, deadline=None)
def test_damaged_messages_are_a_message_or_an_error(
    name: str, kind: type, data: st.DataObject, mutation: Mutation
) -> None:
    codec = CODECS[name]

    decoded(codec, mutation.applied(codec.encode(message(kind, data))), name)


def test_the_largest_reports_fit_into_the_ring() -> None:
    count, face = MAX_EPISODES_PER_REPORT, "\U0001f600"

    episodes = TO_MAIN.encode(EpisodesDone(0, np.zeros(count), np.zeros(count, np.int64)))
    extras = TO_MAIN.encode(EpisodeExtras(0, face * MAX_STAT_NAME_CHARS, np.zeros(count)))
    refused = TO_MAIN.encode(ExtrasRefused(0, face * MAX_REASON_CHARS))

    assert len(episodes) == MAX_REPORT_BYTES
    assert max(len(extras), len(refused)) <= MAX_REPORT_BYTES


def test_what_a_codec_cannot_encode_is_refused_and_another_process_decodes_alike() -> None:
    with pytest.raises(KeyError):
        TO_POLICY.encode(ActReply(0, 0))  # type: ignore[arg-type]
    with pytest.raises(struct.error):
        TO_ACTOR.encode(SlotFreed(2**32))
    twin: Codec[Any] = pickle.loads(pickle.dumps(TO_ACTOR))  # which is what a child gets
    assert twin.decode(TO_ACTOR.encode(SlotFreed(9))) == SlotFreed(9)
