"""Rows are replayed in the proportion that is asked for, from those kept last, as they were recorded."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.learner.replay import Replay
from sfactory.learner.staging import REPLAYED, Staging
from tests.support.assembly import Assembly, mark
from tests.support.parts import VECTOR, small_layout

ROWS, DATASET = 3, 7
LAYOUT = small_layout(num_actors=2, slots_per_split=3, rows=ROWS, dataset_rows=DATASET)


class ReplayAssembly(Assembly):
    """An Assembly whose datasets mix new rows with replayed ones. ``new``, ``old``: their marks, in order."""

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

    parts.run(2_000)

    # 2,000 datasets of 7 rows hold thousands of draws; a whole proportion leaves no more to chance than both ends do.
    tolerance = 0.002 if proportion == int(proportion) else 0.05
    assert len(parts.old) / len(parts.new) == pytest.approx(proportion, rel=tolerance)
    assert len(parts.old) + len(parts.new) == 2_000 * DATASET


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
