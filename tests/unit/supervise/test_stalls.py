"""A process that works on one thing for too long is warned of, once."""

from __future__ import annotations

import pytest

from sfactory.clock import now
from sfactory.shared.status import State, StatusBoard
from sfactory.supervise.monitors import StallWarnings


def test_a_stalled_process_is_named_once_until_it_stalls_anew() -> None:
    board = StatusBoard(["sf-actor-0", "sf-actor-1", "sf-actor-2"])
    watch = StallWarnings(board, board.names, limit_s=30.0)
    board.row("sf-actor-0").set("busy_since", now() - 31.0)
    board.row("sf-actor-1").set("busy_since", now() - 5.0)

    assert watch.look() == ["sf-actor-0"]
    assert watch.look() == []

    board.row("sf-actor-0").set("busy_since", now() - 40.0)

    assert watch.look() == ["sf-actor-0"]


def test_a_process_that_waits_is_no_stall() -> None:
    board = StatusBoard(["sf-actor-0"])
    board.row("sf-actor-0").set("busy_since", 0.0)

    assert StallWarnings(board, board.names, limit_s=0.0).look() == []


def test_stalls_are_told_with_who_waits_for_whom_once_for_all(caplog: pytest.LogCaptureFixture) -> None:
    board = StatusBoard(["sf-actor-0", "sf-actor-1"])
    watch = StallWarnings(board, board.names, waits=lambda: "everybody for nobody")
    for name in board.names:
        board.row(name).set("busy_since", now() - 31.0)

    assert watch.look() == board.names
    assert watch.look() == []

    assert caplog.text.count("what each process is waiting for:\neverybody for nobody") == 1


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.STARTING, "making one environment"),
        (State.RESETTING, "the first reset of one environment"),
        (State.RUNNING, "one step"),
    ],
)
def test_a_warning_says_what_takes_so_long(state: State, words: str, caplog: pytest.LogCaptureFixture) -> None:
    board = StatusBoard(["sf-actor-0"])
    board.row("sf-actor-0").set("state", state)
    board.row("sf-actor-0").set("busy_since", now() - 31.0)

    StallWarnings(board, board.names).look()

    assert f"sf-actor-0 has been busy with {words} for 31 s" in caplog.text
