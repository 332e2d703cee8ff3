"""A learner without datasets waits while actors step, however slowly, and tells who waits for whom before it stops."""

from __future__ import annotations

import logging

import pytest

from sfactory.clock import now
from sfactory.errors import ExitCode, Starved
from sfactory.learner import diagnostics as room
from sfactory.learner.diagnostics import Starvation
from sfactory.shared.diagnosis import describe_processes
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import State, StatusBoard

NAMES = ["sf-learner-0", "sf-policy-0-0", "sf-actor-0", "sf-actor-1"]


@pytest.fixture
def board() -> StatusBoard:
    status = StatusBoard(NAMES)
    for name in NAMES:
        row = status.row(name)
        row.start()
        row.set("state", State.RUNNING)
    return status


class Time:
    """A clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 1000.0
        monkeypatch.setattr(room, "Awake", lambda: HandAwake(self))


class HandAwake:
    """An Awake by that clock, which was never paused."""

    def __init__(self, time: Time) -> None:
        self._time, self._since = time, time.at

    def look(self) -> float:
        return self._time.at - self._since


def starving(board: StatusBoard, timeout_s: float = 300.0) -> Starvation:
    table = SlotTable(2, 1, 2, 1)
    table.begin(0)
    table.begin(3)
    table.publish(3, 0)
    return Starvation(timeout_s, board, table)


def test_slow_environments_are_told_of_and_waited_for(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time(monkeypatch)
    starvation = starving(board)
    for _ in range(3):
        time.at += 301.0
        board.row("sf-actor-1").count_env_steps(7)
        with caplog.at_level(logging.WARNING):
            starvation.look()

    assert len(caplog.records) == 3
    assert "no dataset to learn from for 300 s" in caplog.text
    assert "actors have taken 7 steps meanwhile" in caplog.text


def test_one_of_several_policies_is_told_what_says_how_often_it_plays(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time(monkeypatch)
    starvation = Starvation(300.0, board, SlotTable(2, 1, 2, 1), policy=3)
    time.at += 301.0
    board.row("sf-actor-1").count_env_steps(7)

    with caplog.at_level(logging.WARNING):
        starvation.look()

    assert "--policy_mapping says how often policy 3 plays, and --train_policies can leave it out" in caplog.text


def test_if_no_actor_has_moved_it_ends_and_names_every_process_and_slot(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)
    starvation = starving(board)
    board.row("sf-actor-0").begin_work()
    time.at += 299.0
    starvation.look()
    time.at += 2.0

    with pytest.raises(Starved) as caught:
        starvation.look()

    text = str(caught.value)
    assert "no actor has taken a step meanwhile" in text
    assert all(name in text for name in NAMES)
    assert "sf-actor-0: running, busy for" in text
    assert "slots: 1 filling, 1 free" in text
    assert "slots: 1 free, 1 ready" in text
    assert "heard of last: sf-actor-0" in text
    assert Starved.exit_code is ExitCode.LEARNER


def test_actors_that_still_reset_their_envs_are_waited_for(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time(monkeypatch)
    starvation = starving(board)
    board.row("sf-actor-1").set("state", State.RESETTING)
    time.at += 301.0
    with caplog.at_level(logging.WARNING):
        starvation.look()
    assert "actors still create or reset" in caplog.text

    board.row("sf-actor-1").set("state", State.RUNNING)
    time.at += 301.0
    with pytest.raises(Starved):
        starvation.look()


def test_a_dataset_begins_the_time_anew_and_zero_never_looks(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)
    starvation, never = starving(board), starving(board, timeout_s=0.0)
    time.at += 250.0
    starvation.begin()
    time.at += 250.0
    starvation.look()
    time.at += 1e9
    never.look()


def test_a_process_that_was_never_heard_of_is_told_as_such() -> None:
    text = describe_processes(StatusBoard(NAMES), SlotTable(2, 1, 2, 1))

    assert "sf-policy-0-0: unborn, waits, heard of never" in text
    assert now() > 0


def test_messages_that_wait_are_told_with_their_reader() -> None:
    text = describe_processes(StatusBoard(NAMES), SlotTable(2, 1, 2, 1), {"sf-actor-1": 3})

    (line,) = [line for line in text.splitlines() if line.startswith("  sf-actor-1:")]
    assert "3 messages wait for it" in line
    assert text.count("wait for it") == 1


def test_a_run_that_was_paused_has_not_waited_meanwhile(board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1000.0
    monkeypatch.setattr("sfactory.clock.now", lambda: at)
    starvation = starving(board)

    at += 3600.0
    starvation.look()
    for _ in range(297):
        at += 1.0
        starvation.look()

    at += 1.5
    with pytest.raises(Starved, match="no actor has taken a step"):
        starvation.look()
