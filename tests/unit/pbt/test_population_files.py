"""Files of a population are read back unchanged; errors in damaged files say what to do."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.errors import RunDirError
from sfactory.pbt.event_log import EVENT_LOG_NAME, Event, Kind, append_event, read_events
from sfactory.pbt.state import STATE_NAME, Member, PopulationState, load_state, save_state

COUNTS = st.integers(0, 10**15)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
HYPERPARAMETERS = st.dictionaries(st.sampled_from(["learning_rate", "gamma", "batch_size"]), FLOATS | COUNTS)
SHAPINGS = st.none() | st.dictionaries(
    st.text(max_size=5), FLOATS | st.booleans() | st.text(max_size=5) | st.lists(FLOATS, max_size=2), max_size=3
)
MEMBERS = st.builds(Member, COUNTS, HYPERPARAMETERS, SHAPINGS, st.none() | COUNTS, COUNTS, COUNTS)
STATES = st.builds(
    lambda seed, events, shaping, members: PopulationState(seed, events, shaping, {m.policy: m for m in members}),
    COUNTS,
    COUNTS,
    SHAPINGS,
    st.lists(MEMBERS, max_size=4, unique_by=lambda member: member.policy),
)
OBJECTIVES = st.dictionaries(COUNTS, st.none() | FLOATS, max_size=3)
EVENTS = st.builds(
    *(Event, st.sampled_from(Kind), COUNTS, COUNTS, HYPERPARAMETERS, SHAPINGS, st.none() | COUNTS, OBJECTIVES),
    st.text(max_size=9),
)
STATE = PopulationState(7, 3, {"win": 1.0}, {0: Member(0, {"gamma": 0.99}, {"win": 1.0}, None, 2_000, 1)})


@settings(max_examples=100, deadline=None)
@given(STATES, EVENTS)
def test_states_and_events_are_read_back(state: PopulationState, event: Event) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert load_state(Path(folder)) is None
        save_state(Path(folder), state)
        assert load_state(Path(folder)) == state
    assert Event.from_json(json.loads(json.dumps(dataclasses.asdict(event)))) == event


def damaged(**changes: Any) -> str:
    return json.dumps(STATE.to_json() | changes)


def with_member(**changes: Any) -> str:
    return damaged(members=[{**dataclasses.asdict(STATE.members[0]), **changes}])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting"),
        (damaged()[:-20], "Expecting"),
        ("[" * 100_000, "brackets deep"),
        ("[]", "not a JSON object"),
        (damaged(format_version=2), "format_version 2"),
        (damaged(seed=-1), "'seed'"),
        (damaged(events=True), "'events'"),
        (damaged(members={}), "'members' is not a list"),
        (damaged(members=[3]), "a member is not"),
        (damaged(members=2 * STATE.to_json()["members"]), "a policy twice"),
        (damaged(reward_shaping=[1]), "'reward_shaping' must be a mapping"),
        (with_member(hyperparameters=3), "'hyperparameters' of a member"),
        (with_member(hyperparameters={"gamma": "0.9"}), "gamma='0.9'"),
        (with_member(hyperparameters={"no_such": 1}), "no_such=1"),
        (with_member(next_turn=1.5), "'next_turn'"),
        (with_member(parent="0"), "'parent'"),
    ],
)
def test_damaged_state_is_refused_with_advice(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / STATE_NAME).write_text(text)

    with pytest.raises(RunDirError) as caught:
        load_state(tmp_path)

    message = str(caught.value)
    assert [part for part in (reason, str(tmp_path / STATE_NAME), "restore a copy") if part not in message] == []
    assert (tmp_path / STATE_NAME).read_text() == text


def event(policy: int, env_steps: int) -> Event:
    return Event(Kind.MUTATE, policy, env_steps, {"gamma": 0.9}, None, None, {0: 1.0, 1: None}, "why")


def test_incomplete_line_is_ignored_and_removed(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []
    path = tmp_path / EVENT_LOG_NAME
    path.write_bytes(b'{"number')
    append_event(tmp_path, 0, event(0, 10))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number": 1, "kind": "muta' + b"x" * 200_000)

    assert read_events(tmp_path) == [event(0, 10)]
    append_event(tmp_path, 1, event(1, 12))

    assert path.read_bytes().startswith(whole)
    assert read_events(tmp_path) == [event(0, 10), event(1, 12)]


def test_repeated_event_supersedes_later_lines(tmp_path: Path) -> None:
    for number, policy, env_steps in ((0, 0, 10), (1, 0, 20), (2, 1, 3), (1, 0, 15), (2, 0, 21)):
        append_event(tmp_path, number, event(policy, env_steps))

    assert read_events(tmp_path) == [event(0, 10), event(0, 15), event(0, 21)]


@pytest.mark.parametrize("line", ["{}", "3", "nonsense", '{"number": 1, "kind": "die"}'])
def test_invalid_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    append_event(tmp_path, 0, event(0, 10))
    with (tmp_path / EVENT_LOG_NAME).open("a") as file:
        file.write(line + "\n")

    with pytest.raises(RunDirError, match=r"population\.jsonl, line 2 is not an event"):
        read_events(tmp_path)
