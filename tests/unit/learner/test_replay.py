"""Trajectories are replayed in the proportion that is asked for, from those kept last, as they were recorded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sfactory.learner.batcher import Batcher
from sfactory.learner.replay import Replay
from sfactory.learner.staging import REPLAYED, Staging
from tests.support.parts import VECTOR, small_layout
from tests.unit.learner.test_batcher import Bench

ROWS, DATASET = 3, 7


class ReplayBench(Bench):
    """A Bench whose datasets mix new rows with replayed ones."""

    def __init__(self, proportion: float, slots: int = 50, include_new: bool = False, seed: int = 1) -> None:
        super().__init__(rows=ROWS, dataset_rows=DATASET)
        self.replay = Replay(proportion, slots, include_new, seed)
        self.assembler = Batcher(self.rests, False, self.replay)
        layout = small_layout(num_actors=2, slots_per_split=3, rows=ROWS, dataset_rows=DATASET)
        self.staging = Staging(VECTOR, layout, pin=False, replay=True)
        self.new: list[int] = []
        self.old: list[int] = []
        self._next = 0

    def run(self, datasets: int) -> None:
        """Assemble so many datasets, keeping slots coming."""
        for _ in range(datasets):
            self.staging.clear()
            while not self.assembler.advance(self.staging, 0):
                self.send(self._next)
                assert all(len(self.freed(actor)) <= 6 for actor in range(2))  # read, as actors do
                self._next = (self._next + 1) % 6
            marks = self.staging.scalars["reward"][0].int().tolist()
            replayed = self.staging.scalars[REPLAYED][0].tolist()
            self.new += [mark for mark, old in zip(marks, replayed, strict=True) if not old]
            self.old += [mark for mark, old in zip(marks, replayed, strict=True) if old]


@pytest.mark.parametrize("proportion", [0.25, 0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("include_new", [False, True])
def test_so_many_rows_are_replayed_for_each_new_one(proportion: float, include_new: bool) -> None:
    bench = ReplayBench(proportion, include_new=include_new)

    bench.run(2_000)

    mean = len(bench.old) / len(bench.new)
    # 2,000 datasets of 7 rows hold thousands of draws; a whole proportion leaves no more to chance than both ends do.
    assert mean == pytest.approx(proportion, rel=0.002 if proportion == int(proportion) else 0.05)
    assert len(bench.old) + len(bench.new) == 2_000 * DATASET


def test_every_new_row_comes_exactly_once_and_in_order() -> None:
    bench = ReplayBench(1.0)

    bench.run(200)

    turns = [(number // (6 * ROWS) + 1, number // ROWS % 6, number % ROWS) for number in range(len(bench.new))]
    assert bench.new == [1000 * filling + 100 * slot + row for filling, slot, row in turns]


def test_what_is_replayed_was_kept_and_is_among_the_last() -> None:
    bench = ReplayBench(1.0, slots=5)
    seen: list[int] = []
    for _ in range(300):
        before = len(bench.new), len(bench.old)
        bench.run(1)
        # A dataset of 7 rows brings at most 7 new ones; no more than 5 + 7 rows back is anything kept.
        recent = set(seen[-12:] + bench.new[before[0] :])
        assert set(bench.old[before[1] :]) <= recent
        seen += bench.new[before[0] :]
    assert bench.replay.rows == 5


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
    bench = ReplayBench(1.0)
    layout = small_layout(num_actors=2, slots_per_split=3, rows=ROWS, dataset_rows=DATASET)
    source = Staging(VECTOR, layout, pin=False, replay=True)
    generator = np.random.default_rng(0)
    for view in source.views():
        view[...] = generator.integers(0, 2, view.shape) if view.dtype != np.float32 else generator.random(view.shape)
    bench.replay.keep(source, 0, 1)
    target = Staging(VECTOR, layout, pin=False, replay=True)

    target.take_replayed(bench.replay._kept, np.zeros(2, np.int64))

    for of, to in zip(source.views(), target.views(), strict=True):
        np.testing.assert_array_equal(to[:, 0], of[:, 0])
        np.testing.assert_array_equal(to[:, 1], of[:, 0])
    assert target.replayed_rows == 2
    assert target.valid_steps == 0


def test_the_same_seed_replays_the_same_rows_and_another_one_others() -> None:
    benches = [ReplayBench(0.5, seed=seed) for seed in (1, 1, 2)]
    for bench in benches:
        bench.run(100)

    assert benches[0].old == benches[1].old
    assert Counter(benches[0].old) != Counter(benches[2].old)
