"""The cores a run may use are those of its mask, or fewer under a container's quota."""

from __future__ import annotations

import os

import pytest

from sfactory.system.cores import Cores


@pytest.mark.parametrize(("quota", "count"), [(None, 4), (0.5, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
def test_a_quota_below_the_mask_lowers_the_count(quota: float | None, count: int) -> None:
    assert Cores((0, 1, 2, 5), quota).count == count


def test_actors_are_pinned_to_the_masks_own_cores() -> None:
    cores = Cores((2, 3, 7), None)

    assert [cores.cores_of_actor(actor, 3) for actor in range(3)] == [frozenset({core}) for core in (2, 3, 7)]


def test_nobody_is_pinned_where_actors_outnumber_cores_or_there_is_a_quota() -> None:
    assert Cores((2, 3), None).cores_of_actor(0, num_actors=3) is None
    assert Cores((2, 3), 1.5).cores_of_actor(0, num_actors=1) is None


@pytest.mark.parametrize(
    ("quota", "actors", "due"),
    [
        (None, 2, [{5}, {7}]),
        (None, 1, [{5}]),
        (None, 3, [{5, 7}] * 3),  # more actors than cores are left to them: all on those
        (3.0, 2, [{5, 7}] * 2),
    ],
)
def test_cores_that_are_kept_for_the_learner_are_no_actors(
    quota: float | None, actors: int, due: list[set[int]]
) -> None:
    cores = Cores((1, 3, 5, 7), quota).keeping(2)

    assert [set(cores.cores_of_actor(actor, actors) or ()) for actor in range(actors)] == due
    assert cores.learner_threads(actors) >= 2


def test_nobody_is_pinned_where_the_kernel_refuses_it() -> None:
    assert Cores((2, 3), None, kept=1, pins=False).cores_of_actor(0, num_actors=1) is None


@pytest.mark.parametrize(("actors", "threads"), [(1, 7), (6, 2), (7, 1), (8, 1), (100, 1)])
def test_the_learner_gets_the_cores_that_actors_leave_over(actors: int, threads: int) -> None:
    assert Cores(tuple(range(8)), None).learner_threads(actors) == threads


def test_the_present_mask_is_used() -> None:
    assert Cores.available().ids == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize(("cores", "wanted", "starting"), [(2, 0, 8), (16, 0, 32), (16, 1, 1), (2, 100, 100)])
def test_actors_start_in_twice_the_cores_or_as_many_as_are_wanted(cores: int, wanted: int, starting: int) -> None:
    assert Cores(tuple(range(cores)), None).actors_starting(wanted) == starting
