"""A pool of opponents keeps the newest snapshots, and how episodes against them ended."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.shared.opponents import EMPTY, EPISODES, POINTS, OpponentPool


def filled(count: int, size: int = 2) -> OpponentPool:
    """A pool with snapshots after 0, 100, ... env steps, whose weights carry their number."""
    pool = OpponentPool(size, weight_bytes=8, num_actors=2)
    for number in range(count):
        pool.add(np.full(8, number, np.uint8), 10 * number, 100 * number)
    return pool


@pytest.mark.parametrize(("count", "newest"), [(0, []), (1, [0]), (2, [100, 0]), (3, [200, 100]), (6, [500, 400])])
def test_the_newest_snapshots_are_drawn_and_the_one_before_them_still_plays(count: int, newest: list[int]) -> None:
    pool = filled(count)

    assert [pool.env_steps(slot) for slot in pool.newest()] == newest
    kept = sorted(pool.env_steps(slot) for slot in range(3))
    assert kept == sorted([EMPTY] * (3 - count) + [100 * number for number in range(max(0, count - 3), count)])
    for slot in pool.newest():
        weights = np.empty(8, np.uint8)
        _, version = pool.weights[slot].read_into(weights)
        assert (version, weights.tolist()) == (pool.env_steps(slot) // 10, [version // 10] * 8)


def test_results_of_all_actors_add_up_and_end_with_the_snapshot() -> None:
    pool = filled(3)
    slot = pool.newest()[0]
    for actor, score in ((0, 1.0), (0, 0.5), (1, 0.0), (1, 0.0)):
        pool.record(actor, slot, score)

    found = pool.results()
    assert found[slot].tolist()[:3] == [1.0, 1.0, 2.0]
    assert found[slot, POINTS] == pytest.approx(0.99 + 0.5)
    assert found[slot, EPISODES] == pytest.approx(2 * 1.99)
    assert not found[[other for other in range(3) if other != slot]].any()
    for number in (3, 4, 5):
        pool.add(np.zeros(8, np.uint8), number, 100 * number)
    assert not pool.results().any()
    pool.record(1, slot, 1.0)
    assert pool.results()[slot].tolist() == [1.0, 0.0, 0.0, 1.0, 1.0]
