"""Announced slots become datasets: each row once and in order, for any number of batchers; slots are freed once."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.clock import BLOCK_S, now
from sfactory.learner.batcher import Batcher, RingUsage, SlotRemainder
from sfactory.learner.staging import Staging
from sfactory.messages import TrajectoryReady
from sfactory.shared.slots import SlotState
from sfactory.shared.status import StatusBoard
from tests.support.assembly import Assembly, mark
from tests.support.parts import VECTOR, small_layout

FREE, READY = SlotState.FREE, SlotState.READY


def assembly_of(rows: int = 3, dataset_rows: int = 4, shared: bool = False) -> Assembly:
    """2 actors with 3 slots each."""
    layout = small_layout(num_actors=2, slots_per_split=3, rows=rows, dataset_rows=dataset_rows)
    return Assembly(layout, shared=shared)


def marks_of(*rows: tuple[int, int]) -> list[int]:
    """Of these (slot, row), in the slot's first filling."""
    return [mark(1, slot, row) for slot, row in rows]


def test_slots_are_joined_in_order_cut_where_a_dataset_is_full_and_freed_after_their_last_row() -> None:
    parts = assembly_of(rows=3, dataset_rows=4)
    parts.send(4, 0, 1, 3)

    assert parts.dataset() == marks_of((4, 0), (4, 1), (4, 2), (0, 0))
    assert parts.states() == [READY, READY, FREE, READY, FREE, FREE]
    assert parts.freed() == [4]
    assert parts.dataset() == marks_of((0, 1), (0, 2), (1, 0), (1, 1))
    assert parts.freed() == [0]
    assert parts.dataset() == marks_of((1, 2), (3, 0), (3, 1), (3, 2))
    assert parts.freed() == [1, 3]
    assert parts.states() == [FREE] * 6
    assert parts.row.get("received_steps") == 4 * 5


def test_giving_up_keeps_uncopied_slots() -> None:
    parts = assembly_of(rows=3, dataset_rows=4)
    parts.send(0)
    looks = iter([False, True])

    assert not parts.batcher.fill(parts.staging, lambda: next(looks))

    assert parts.staging.filled == 3
    assert not parts.staging.full


def test_discarding_frees_every_announced_slot_without_a_copy() -> None:
    parts = assembly_of()
    parts.send(0, 3, 4)

    parts.batcher.receive(1)
    parts.batcher.discard()

    assert parts.states() == [FREE] * 6
    assert parts.freed() == [0, 3, 4]
    assert parts.staging.filled == 0


def test_a_slot_announced_twice_is_copied_once() -> None:
    parts = assembly_of(rows=4, dataset_rows=4)
    parts.send(0)
    parts.ring.put(TrajectoryReady(0, 0))
    assert parts.dataset() == marks_of((0, 0), (0, 1), (0, 2), (0, 3))
    # A late second announcement comes while the slot is being filled again.
    parts.table.begin(0)
    parts.ring.put(TrajectoryReady(0, 0))
    parts.inbox.receive(0)
    assert parts.inbox.take_all() == []
    parts.table.publish(0, 0)
    parts.ring.put(TrajectoryReady(0, 0))
    parts.ring.put(TrajectoryReady(0, 0))
    parts.inbox.receive(0)

    assert [rest.slot.index for rest in parts.inbox.take_all()] == [0]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 6),
    dataset_rows=st.integers(1, 6) | st.just(9),
    order=st.lists(st.integers(0, 5), min_size=4, max_size=30),
)
def test_every_row_is_delivered_once_whatever_the_sizes(rows: int, dataset_rows: int, order: list[int]) -> None:
    parts = assembly_of(rows, dataset_rows)
    delivered: list[int] = []
    freed: list[int] = []
    for slot in order:
        # What a slot holds must be out before it is filled again: that is what back-pressure sees to.
        while parts.table.state(slot) is READY:
            if not parts.advance():
                parts.send(next(other for other in range(6) if parts.table.state(other) is FREE))
                continue
            delivered += parts.marks()
            parts.staging.clear()
            freed += parts.freed()
        parts.send(slot)
    while parts.advance():
        delivered += parts.marks()
        parts.staging.clear()
    delivered += parts.marks()
    freed += parts.freed()

    assert delivered == parts.sent
    assert len(freed) == sum(parts.table.generation(slot) for slot in range(6))


def test_slots_come_in_order_after_a_given_back_remainder() -> None:
    parts = assembly_of(rows=3)
    parts.send(4, 0, 2)
    inbox = parts.inbox

    first, second = inbox.take(1.0), inbox.take(0)
    assert first is not None
    assert second is not None
    inbox.give_back(SlotRemainder(second.slot, 2))

    assert (first.slot.index, second.slot.index) == (4, 0)
    assert [(rest.slot.index, rest.start) for rest in inbox.take_all()] == [(0, 2), (2, 0)]
    assert inbox.take(0) is None


def test_waiting_batcher_gets_a_given_back_remainder_at_once() -> None:
    parts = assembly_of(rows=3, shared=True)
    parts.send(4)
    parts.inbox.receive(1.0)
    taken = parts.inbox.take(0)
    assert taken is not None
    given: list[SlotRemainder | None] = []
    waits = threading.Thread(target=lambda: given.append(parts.inbox.take(600.0)), daemon=True)
    waits.start()

    parts.inbox.give_back(SlotRemainder(taken.slot, 2))

    waits.join(60.0)
    assert [None if rest is None else (rest.slot.index, rest.start) for rest in given] == [(4, 2)]


def test_several_batchers_share_all_rows_between_them_each_exactly_once() -> None:
    parts = assembly_of(rows=3, dataset_rows=4, shared=True)
    lock, marks, wanted = threading.Lock(), list[int](), 300

    def batch() -> None:
        batcher, staging = Batcher(parts.inbox, slots_until_trained=False), Staging(VECTOR, parts.layout, pin=False)
        while batcher.fill(staging, lambda: len(marks) >= wanted):
            with lock:
                marks.extend(int(number) for number in staging.scalars["reward"][0].tolist())

    def read() -> None:
        while len(marks) < wanted:
            parts.inbox.receive(BLOCK_S)

    batchers = [threading.Thread(target=batch) for _ in range(3)]
    for thread in (*batchers, threading.Thread(target=read, daemon=True)):
        thread.start()
    deadline = now() + 60.0
    while any(batcher.is_alive() for batcher in batchers) and now() < deadline:
        for slot in range(6):
            if parts.table.state(slot) is FREE and len(marks) < wanted:
                parts.send(slot)
        assert len(parts.freed()) <= 12  # read, as actors do
    for batcher in batchers:
        batcher.join(60.0)

    assert len(marks) >= wanted
    assert len(set(marks)) == len(marks)
    assert set(marks) <= set(parts.sent)
    # What was not delivered lies in areas that were given up, at most 3 rows each, or still waits.
    assert len(parts.sent) - len(marks) <= 3 * 3 + 6 * 3


def test_ring_time_is_that_of_the_first_thread() -> None:
    row = StatusBoard(["sf-learner-0"]).row("sf-learner-0")
    rings = RingUsage(row)
    rings.enter_ring()
    stamps = [row.get("in_ring_since")]

    def other() -> None:
        rings.enter_ring()
        stamps.append(row.get("in_ring_since"))
        rings.leave_ring()
        stamps.append(row.get("in_ring_since"))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30.0)
    rings.leave_ring()

    assert stamps[0] > 0
    assert stamps == [stamps[0]] * 3
    assert row.get("in_ring_since") == 0.0
