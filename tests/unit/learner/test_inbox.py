"""Slots that were announced are handed out once each, in order, to however many ask."""

from __future__ import annotations

import threading

from sfactory.clock import BLOCK_S, now
from sfactory.learner.batcher import Batcher, SlotRemainder
from sfactory.learner.staging import Staging
from sfactory.shared.slots import SlotState
from tests.support.parts import VECTOR, small_layout
from tests.unit.learner.test_assembler import Bench


def test_slots_come_in_order_and_a_rest_comes_before_all_others() -> None:
    bench = Bench(rows=3)
    bench.send(4, 0, 2)
    inbox = bench.rests

    first, second = inbox.take(1.0), inbox.take(0)
    assert first is not None
    assert second is not None
    inbox.give_back(SlotRemainder(second.slot, 2))
    rest = inbox.take(0)

    assert (first.slot.index, second.slot.index) == (4, 0)
    assert rest is not None
    assert (rest.slot.index, rest.start) == (0, 2)
    assert [taken.slot.index for taken in inbox.take_all()] == [2]
    assert inbox.take(0) is None


def test_who_waits_is_given_nothing_after_its_time() -> None:
    bench, begun = Bench(), now()

    assert bench.rests.take(0.05) is None

    assert now() - begun < 30 * BLOCK_S


def test_a_batcher_that_waits_gets_at_once_what_another_gives_back() -> None:
    bench = Bench(rows=3, shared=True)
    bench.send(4)
    bench.rests.receive(1.0)
    taken = bench.rests.take(0)
    assert taken is not None
    given: list[SlotRemainder | None] = []
    waits = threading.Thread(target=lambda: given.append(bench.rests.take(600.0)), daemon=True)
    waits.start()

    bench.rests.give_back(SlotRemainder(taken.slot, 2))

    waits.join(60.0)
    assert [None if rest is None else (rest.slot.index, rest.start) for rest in given] == [(4, 2)]


def test_several_batchers_share_all_rows_between_them_each_exactly_once() -> None:
    bench = Bench(rows=3, dataset_rows=4, shared=True)
    layout = small_layout(num_actors=2, slots_per_split=3, rows=3, dataset_rows=4)
    lock, marks, wanted = threading.Lock(), list[int](), 300

    def batch() -> None:
        assembler, staging = Batcher(bench.rests, slots_until_trained=False), Staging(VECTOR, layout, pin=False)
        while assembler.fill(staging, lambda: len(marks) >= wanted):
            with lock:
                marks.extend(int(mark) for mark in staging.scalars["reward"][0].tolist())

    def read() -> None:
        while len(marks) < wanted:
            bench.rests.receive(BLOCK_S)

    batchers = [threading.Thread(target=batch) for _ in range(3)]
    for thread in (*batchers, threading.Thread(target=read, daemon=True)):
        thread.start()
    sent: list[int] = []
    deadline = now() + 60.0
    while any(batcher.is_alive() for batcher in batchers) and now() < deadline:
        for slot in range(6):
            if bench.table.state(slot) is SlotState.FREE and len(marks) < wanted:
                bench.send(slot)
                sent += [1000 * bench.table.generation(slot) + 100 * slot + row for row in range(3)]
        assert all(len(bench.freed(actor)) <= 6 for actor in range(2))  # read, as actors do
    for batcher in batchers:
        batcher.join(60.0)

    assert len(marks) >= wanted
    assert len(set(marks)) == len(marks)
    assert set(marks) <= set(sent)
    # What was not delivered lies in areas that were given up, at most 3 rows each, or still waits.
    assert len(sent) - len(marks) <= 3 * 3 + 6 * 3
