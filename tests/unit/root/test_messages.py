"""Messages have the sizes that rings are made for, and bytes that are no message are errors."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np
import pytest

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


def test_the_largest_reports_fit_into_the_ring() -> None:
    count, face = MAX_EPISODES_PER_REPORT, "\U0001f600"

    episodes = TO_MAIN.encode(EpisodesDone(0, np.zeros(count), np.zeros(count, np.int64)))
    extras = TO_MAIN.encode(EpisodeExtras(0, face * MAX_STAT_NAME_CHARS, np.zeros(count)))
    refused = TO_MAIN.encode(ExtrasRefused(0, face * MAX_REASON_CHARS))

    assert len(episodes) == MAX_REPORT_BYTES
    assert max(len(extras), len(refused)) <= MAX_REPORT_BYTES


@pytest.mark.parametrize(
    "message",
    [EpisodeExtras(1, "kills", np.ones(2)), EpisodesDone(1, np.ones(2), np.ones(2, np.int64))],
    ids=["extras", "episodes"],
)
def test_truncated_and_overlong_reports_are_errors(message: EpisodeExtras | EpisodesDone) -> None:
    encoded = TO_MAIN.encode(message)

    for broken in (*(encoded[:cut] for cut in range(len(encoded))), encoded + b"\0"):
        with pytest.raises((ValueError, struct.error)):
            TO_MAIN.decode(broken)


@pytest.mark.parametrize("codec", [TO_POLICY, TO_ACTOR, TO_LEARNER, TO_MAIN])
def test_unknown_tags_are_errors(codec: Codec[Any]) -> None:
    for data in (b"", b"\xff", b"\x07" + bytes(200)):
        with pytest.raises(ValueError, match="unknown tag"):
            codec.decode(data)


def test_a_message_of_another_channel_and_a_number_that_does_not_fit_are_refused() -> None:
    with pytest.raises(KeyError):
        TO_POLICY.encode(ActReply(0, 0))  # type: ignore[arg-type]
    with pytest.raises(struct.error):
        TO_ACTOR.encode(SlotFreed(2**32))


def test_a_codec_decodes_alike_in_another_process() -> None:
    twin: Codec[Any] = pickle.loads(pickle.dumps(TO_ACTOR))  # which is what a child gets

    assert twin.decode(TO_ACTOR.encode(SlotFreed(9))) == SlotFreed(9)
    assert twin.decode(TO_ACTOR.encode(ActReply(1, 2))) == ActReply(1, 2)
