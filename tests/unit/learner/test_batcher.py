"""Announced slots become datasets: each row once and in order, and some rows again by replay."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.learner.batcher import RingUsage, SlotRemainder
from sfactory.learner.replay import Replay
from sfactory.learner.staging import REPLAYED, Staging
from sfactory.messages import TrajectoryReady
from sfactory.shared.slots import SlotState
from sfactory.shared.status import StatusBoard
from tests.support.assembly import Assembly, mark
from tests.support.parts import VECTOR, small_layout

FREE, READY = SlotState.FREE, SlotState.READY


def assembly_of(rows: int = 3, dataset_rows: int = 4, several: bool = False) -> Assembly:
    """2 actors with 3 slots each."""
    layout = small_layout(num_actors=2, slots_per_split=3, rows=rows, dataset_rows=dataset_rows)
    return Assembly(layout, several)


def marks_of(*rows: tuple[int, int]) -> list[int]:
    """Of these (slot, row), in the slot's first filling."""
    return [mark(1, slot, row) for slot, row in rows]


def slots_left(parts: Assembly) -> list[tuple[int, int]]:
    """Take all: the slots in order, each with its first row that is not copied yet."""
    return [(rest.slot.index, rest.start) for rest in iter(lambda: parts.inbox.take(0), None)]


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


def test_a_slot_announced_twice_is_copied_once() -> None:
    parts = assembly_of(rows=4, dataset_rows=4)
    parts.send(0)
    parts.ring.put(TrajectoryReady(0, 0))
    assert parts.dataset() == marks_of((0, 0), (0, 1), (0, 2), (0, 3))
    # A late second announcement comes while the slot is being filled again.
    parts.table.begin(0)
    parts.ring.put(TrajectoryReady(0, 0))
    parts.inbox.receive(0)
    assert parts.inbox.take(0) is None
    parts.table.publish(0, 0)
    parts.ring.put(TrajectoryReady(0, 0))
    parts.ring.put(TrajectoryReady(0, 0))
    parts.inbox.receive(0)

    assert slots_left(parts) == [(0, 0)]


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
    assert slots_left(parts) == [(0, 2), (2, 0)]


def test_waiting_batcher_gets_a_given_back_remainder_at_once() -> None:
    parts = assembly_of(rows=3, several=True)
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


def test_ring_time_is_that_of_the_first_thread() -> None:
    row = StatusBoard(["sf-learner-0"]).row("sf-learner-0")
    rings = RingUsage(row)
    with ThreadPoolExecutor(1) as other:
        rings.enter_ring()
        stamps = [row.get("in_ring_since")]
        for use in (rings.enter_ring, rings.leave_ring):
            other.submit(use).result(30.0)
            stamps.append(row.get("in_ring_since"))
    rings.leave_ring()

    assert stamps[0] > 0
    assert stamps == [stamps[0]] * 3
    assert row.get("in_ring_since") == 0.0


ROWS, DATASET = 3, 7
LAYOUT = small_layout(num_actors=2, slots_per_split=3, rows=ROWS, dataset_rows=DATASET)


class ReplayAssembly(Assembly):
    """An Assembly with datasets that mix new rows with replayed ones. ``new``, ``old``: their marks, in order."""

    def __init__(self, proportion: float, slots: int = 50, include_new: bool = False, seed: int = 1) -> None:
        self.replay = Replay(proportion, slots, include_new, seed)
        super().__init__(LAYOUT, replay=self.replay)
        self.new: list[int] = []
        self.old: list[int] = []
        self._next = 0

    def run(self, datasets: int) -> None:
        """Assemble so many datasets, keeping slots coming."""
        for _ in range(datasets):
            self.staging.clear()
            while not self.batcher.advance(self.staging, 0):
                self.send(self._next)
                assert len(self.freed()) <= 12  # read, as actors do
                self._next = (self._next + 1) % 6
            replayed = self.staging.scalars[REPLAYED][0].tolist()
            for number, old in zip(self.marks(), replayed, strict=True):
                (self.old if old else self.new).append(number)


@pytest.mark.parametrize("include_new", [False, True])
@pytest.mark.parametrize("proportion", [0.25, 1.5, 3.0])
def test_so_many_rows_are_replayed_for_each_new_one(proportion: float, include_new: bool) -> None:
    parts = ReplayAssembly(proportion, include_new=include_new)

    parts.run(500)

    # 500 datasets of 7 rows hold thousands of draws; a whole proportion leaves no more to chance than both ends do.
    tolerance = 0.008 if proportion == int(proportion) else 0.05
    assert len(parts.old) / len(parts.new) == pytest.approx(proportion, rel=tolerance)
    assert len(parts.old) + len(parts.new) == 500 * DATASET


def test_new_rows_come_once_in_order_and_replayed_ones_are_among_the_last() -> None:
    parts = ReplayAssembly(1.0, slots=5)
    for _ in range(300):
        new, old = len(parts.new), len(parts.old)
        parts.run(1)
        # A dataset of 7 rows brings at most 7 new ones; no more than 5 + 7 rows back is anything kept.
        assert set(parts.old[old:]) <= set(parts.new[max(0, new - 12) :])

    assert parts.replay.rows == 5
    turns = [(number // (6 * ROWS) + 1, number // ROWS % 6, number % ROWS) for number in range(len(parts.new))]
    assert parts.new == [mark(*turn) for turn in turns]


@pytest.mark.parametrize("include_new", [False, True])
def test_a_row_is_not_replayed_at_once_unless_that_is_wanted(include_new: bool) -> None:
    layout = small_layout(num_actors=2, slots_per_split=3, rows=ROWS, dataset_rows=2)
    replay, staging = Replay(1.0, 50, include_new, seed=1), Staging(VECTOR, layout, pin=False, replay=True)
    again = 0
    for number in range(100):
        staging.clear()
        assert replay.new_rows(available=1, rows_left=2) == 1
        staging.scalars["reward"][:, 0] = number
        staging.filled = 1
        replay.mix(staging, 0, 1)
        if number or include_new:
            assert staging.full
            again += int(staging.scalars["reward"][0, 1]) == number

    assert (again > 0) == include_new


def test_rows_that_are_due_before_the_first_is_kept_wait_for_it() -> None:
    replay = Replay(1.0, 50, include_new=True, seed=1)
    first, second = (Staging(VECTOR, LAYOUT, pin=False, replay=True) for _ in range(2))
    taken = replay.new_rows(available=1, rows_left=first.rows_left)

    replay.add_due(second)  # another batcher, before the new row is kept
    replay.mix(first, 0, taken)
    replay.add_due(second)

    assert (first.filled, second.filled) == (1, 0)


def test_all_that_was_recorded_comes_back_bit_by_bit() -> None:
    replay = Replay(1.0, 50, include_new=False, seed=1)
    source, target = (Staging(VECTOR, LAYOUT, pin=False, replay=True) for _ in range(2))
    generator = np.random.default_rng(0)
    for view in source.views():
        view[...] = generator.integers(0, 2, view.shape) if view.dtype != np.float32 else generator.random(view.shape)
    replay.keep(source, 0, 1)

    target.take_replayed(replay._kept, np.zeros(2, np.int64))

    for of, to in zip(source.views(), target.views(), strict=True):
        np.testing.assert_array_equal(to[:, :2], of[:, [0, 0]])
    assert (target.filled, target.valid_steps) == (2, 0)


def test_the_same_seed_replays_the_same_rows_and_another_one_others() -> None:
    found = []
    for seed in (1, 1, 2):
        parts = ReplayAssembly(0.5, seed=seed)
        parts.run(100)
        found.append(parts.old)

    assert found[0] == found[1]
    assert sorted(found[0]) != sorted(found[2])
