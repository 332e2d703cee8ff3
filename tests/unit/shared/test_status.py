"""Each process writes its own status row and failure text, and main reads them."""

from __future__ import annotations

import os

import pytest

from sfactory.clock import now
from sfactory.shared.status import FailureBoard, State, StatusBoard, StatusRow, Stopwatch

NAMES = ["sf-learner-0", "sf-actor-0", "sf-actor-1"]


def actor_row() -> StatusRow:
    return StatusBoard(NAMES).row("sf-actor-0")


def test_fields_are_added_up_by_kind_of_process() -> None:
    board = StatusBoard(NAMES)
    for name, steps in zip(NAMES, (2**40, 20, 2), strict=True):
        board.row(name).set("env_steps", steps)
    board.row(NAMES[2]).add("env_steps", 1)
    board.row(NAMES[0]).add("env_steps", 1)

    assert board.total("env_steps", "sf-actor") == 23.0
    assert board.values("env_steps", "sf-") == [2.0**40 + 1, 20.0, 3.0]
    assert board.total("env_steps", "sf-policy") == 0.0


def test_row_is_reset_before_a_replacement_starts() -> None:
    row = actor_row()
    before = now()
    row.start()
    row.begin_work()
    assert (row.get("pid"), row.get("state")) == (os.getpid(), State.STARTING)
    assert before <= row.get("busy_since") == row.get("heartbeat") <= now()

    row.clear()

    assert [row.get(name) for name in ("pid", "state", "busy_since", "heartbeat")] == [0, State.NEW, 0, 0]


def test_stopwatch_splits_all_time_into_busy_and_waiting() -> None:
    row = actor_row()
    before = now()
    watch = Stopwatch(row)
    after = now()

    for _ in range(3):
        watch.before_wait()
        assert row.get("busy_since") == 0.0
        watch.after_wait()

    parts = row.get("busy_s") + row.get("waiting_s")
    assert row.get("busy_since") == row.get("heartbeat")
    assert row.get("heartbeat") - after - 1e-9 <= parts <= row.get("heartbeat") - before + 1e-9


def test_work_without_a_wait_is_busy_since_its_last_lap() -> None:
    row = actor_row()
    watch = Stopwatch(row)
    first = row.get("busy_since")

    watch.lap()
    watch.lap()

    assert row.get("busy_since") == row.get("heartbeat") >= first > 0
    assert row.get("busy_s") == pytest.approx(row.get("busy_since") - first, abs=1e-9)
    assert row.get("waiting_s") == 0.0


def test_process_without_a_stopwatch_is_neither_busy_nor_waiting() -> None:
    board = StatusBoard(NAMES)
    board.row("sf-actor-0").begin_work()

    assert board.times("sf-actor", now()) == [(0.0, 0.0), (0.0, 0.0)]


# Cut at the end of 16 KiB, within a letter of two bytes, and with an unpaired surrogate.
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("x" * 20_000 + "ValueError", "x" * (16_384 - 10) + "ValueError"),
        ("ü" * 8191 + "xü", "\ufffd" + "ü" * 8190 + "xü"),
        ("\udcff is no letter", "? is no letter"),
    ],
    ids=["long", "letter", "surrogate"],
)
def test_end_of_any_failure_text_is_kept(text: str, read: str) -> None:
    board = FailureBoard(["a", "b"])

    board.write("a", 20_000 * "longer")
    board.write("a", text)

    assert (board.read("a"), board.read("b")) == (read, "")
