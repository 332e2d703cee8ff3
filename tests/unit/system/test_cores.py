"""A run uses the cores of its affinity mask, or fewer with a CPU quota, and divides them among its processes."""

from __future__ import annotations

import os

import pytest

from sfactory.system.cores import Cores


def test_mask_of_the_process_is_read() -> None:
    assert Cores.available().ids == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize(("quota", "count"), [(None, 4), (0.5, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
def test_quota_lowers_the_number_of_cores(quota: float | None, count: int) -> None:
    assert Cores((0, 1, 2, 5), quota).count == count


@pytest.mark.parametrize(
    ("cores", "actors", "pinned_to"),
    [
        (Cores((2, 3, 7), None), 3, [{2}, {3}, {7}]),
        (Cores((2, 3), None), 3, [None] * 3),
        (Cores((2, 3), 1.5), 1, [None]),
        (Cores((2, 3), None, kept=1, pins=False), 1, [None]),
        (Cores((1, 3, 5, 7), None).keeping(2), 2, [{5}, {7}]),
        (Cores((1, 3, 5, 7), None).keeping(2), 1, [{5}]),
        (Cores((1, 3, 5, 7), None).keeping(2), 3, [{5, 7}] * 3),
        (Cores((1, 3, 5, 7), 3.0).keeping(2), 2, [{5, 7}] * 2),
    ],
)
def test_actors_are_pinned_to_cores_that_are_not_reserved(
    cores: Cores, actors: int, pinned_to: list[set[int] | None]
) -> None:
    assert [cores.cores_of_actor(actor, actors) for actor in range(actors)] == pinned_to


@pytest.mark.parametrize(
    ("kept", "actors", "threads"), [(0, 1, 7), (0, 6, 2), (0, 7, 1), (0, 8, 1), (0, 100, 1), (2, 7, 2)]
)
def test_learner_gets_the_cores_without_actors(kept: int, actors: int, threads: int) -> None:
    assert Cores(tuple(range(8)), None).keeping(kept).learner_threads(actors) == threads


@pytest.mark.parametrize(("cores", "wanted", "starting"), [(2, 0, 8), (16, 0, 32), (16, 1, 1), (2, 100, 100)])
def test_number_of_actors_starting_at_once_follows_the_cores(cores: int, wanted: int, starting: int) -> None:
    assert Cores(tuple(range(cores)), None).actors_starting(wanted) == starting
