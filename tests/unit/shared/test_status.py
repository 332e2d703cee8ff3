"""Each process writes its own row, and main adds up the rows by kind of process."""

from __future__ import annotations

import multiprocessing
import os

from sfactory.clock import now
from sfactory.shared.status import State, StatusBoard, Stopwatch

NAMES = ["sf-learner-0", "sf-actor-0", "sf-actor-1"]


def live_a_little(board: StatusBoard) -> None:
    row = board.row("sf-actor-1")
    row.start()
    row.add("env_steps", 40)
    row.add("env_steps", 2)


def test_rows_are_empty_before_birth() -> None:
    board = StatusBoard(NAMES)

    assert board.row("sf-actor-0").get("state") == State.UNBORN
    assert board.values("pid", "sf-") == [0.0, 0.0, 0.0]


def test_a_row_changes_no_other() -> None:
    board = StatusBoard(NAMES)

    board.row("sf-actor-0").add("env_steps", 5)

    assert board.values("env_steps", "sf-") == [0.0, 5.0, 0.0]


def test_totals_are_over_the_processes_of_one_kind() -> None:
    board = StatusBoard(NAMES)
    for name, steps in zip(NAMES, (100, 20, 3), strict=True):
        board.row(name).set("env_steps", steps)

    assert board.total("env_steps", "sf-actor") == 23.0
    assert board.values("env_steps", "sf-actor") == [20.0, 3.0]
    assert board.total("env_steps", "sf-policy") == 0.0


def test_counts_beyond_float32_and_32_bits_stay_exact() -> None:
    row = StatusBoard(NAMES).row("sf-learner-0")
    row.set("env_steps", 2**40)

    row.add("env_steps", 1)

    assert row.get("env_steps") == 2**40 + 1


def test_a_child_writes_pid_state_and_counts() -> None:
    board = StatusBoard(NAMES)
    child = multiprocessing.get_context("spawn").Process(target=live_a_little, args=(board,))

    child.start()
    child.join(60)

    row = board.row("sf-actor-1")
    assert child.exitcode == 0
    assert row.get("pid") == child.pid != os.getpid()
    assert row.get("state") == State.STARTING
    assert row.get("env_steps") == 42
    assert 0 < row.get("heartbeat") <= now()


def test_a_stopwatch_splits_all_time_into_busy_and_waiting() -> None:
    row = StatusBoard(NAMES).row("sf-actor-0")
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


def test_who_goes_on_without_a_wait_is_busy_since_its_last_piece_of_work() -> None:
    row = StatusBoard(NAMES).row("sf-actor-0")
    watch = Stopwatch(row)
    first = row.get("busy_since")

    watch.lap()
    watch.lap()

    assert row.get("busy_since") == row.get("heartbeat") >= first > 0
    assert abs(row.get("busy_s") - (row.get("busy_since") - first)) < 1e-9
    assert row.get("waiting_s") == 0.0


def test_a_process_that_has_no_stopwatch_yet_is_neither_busy_nor_waiting() -> None:
    board = StatusBoard(NAMES)
    board.row("sf-actor-0").begin_work()

    assert board.times("sf-actor", now()) == [(0.0, 0.0), (0.0, 0.0)]


def test_states_are_in_the_order_of_a_life() -> None:
    assert sorted(State) == [State.UNBORN, State.STARTING, State.RESETTING, State.RUNNING, State.DONE]


def test_the_beginning_of_a_long_piece_of_work_is_stamped() -> None:
    row = StatusBoard(NAMES).row("sf-actor-0")
    before = now()

    row.begin_work()

    assert before <= row.get("busy_since") == row.get("heartbeat") <= now()


def test_the_row_of_a_dead_process_is_as_before_birth_for_the_next_one() -> None:
    row = StatusBoard(NAMES).row("sf-actor-0")
    row.start()
    row.begin_work()
    row.set("state", State.RESETTING)

    row.clear()

    assert [row.get(name) for name in ("pid", "state", "busy_since", "heartbeat")] == [0, State.UNBORN, 0, 0]
