"""Lists, grids and random searches always give the same settings."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from sfactory.launch.param_search import (
    Choice,
    IntUniform,
    LogUniform,
    Parameters,
    ParamGrid,
    ParamList,
    RandomSearch,
    Uniform,
    seeds,
)

FOUR: dict[Any, Any] = {
    "gamma": Uniform(0.9, 0.999),
    "learning_rate": LogUniform(1e-5, 1e-2),
    "num_epochs": IntUniform(1, 4),
    ("rollout", "recurrence"): Choice([(16, 16), (32, 8)]),
}


def test_grid_has_all_combinations_in_order() -> None:
    axes: dict[Any, Any] = {"seed": seeds(2), ("batch_size", "rollout"): [(256, 16), [512, 32]]}

    for grid in (ParamGrid(axes), ParamGrid(list(axes.items()))):
        assert grid.problems() == []
        assert grid.combinations() == [
            {"seed": seed, "batch_size": batch, "rollout": rollout}
            for seed in (1111, 2222)
            for batch, rollout in ((256, 16), (512, 32))
        ]


def test_draws_are_different_and_in_range() -> None:
    drawn = RandomSearch(FOUR, count=200).combinations()
    narrow = RandomSearch({"gamma": Uniform(0.99991, 0.99992)}, count=10).combinations()
    few = [
        {values["x"] for values in RandomSearch({"x": each(0.999, 0.9999), "y": FOUR["gamma"]}, 200).combinations()}
        for each in (Uniform, LogUniform)
    ]

    assert len({tuple(values.values()) for values in drawn}) == 200
    assert all(0.9 <= values["gamma"] <= 0.999 for values in drawn)  # type: ignore[operator]
    assert all(1e-5 <= values["learning_rate"] <= 1e-2 for values in drawn)  # type: ignore[operator]
    assert all(0.99991 <= values["gamma"] <= 0.99992 for values in narrow)  # type: ignore[operator]
    assert min(map(len, few)) > 150
    assert {values["num_epochs"] for values in drawn} == {1, 2, 3, 4}
    assert {(values["rollout"], values["recurrence"]) for values in drawn} == {(16, 16), (32, 8)}
    # Half of the logarithms lie below the middle of the range's logarithms.
    below = sum(math.log10(values["learning_rate"]) < -3.5 for values in drawn)  # type: ignore[arg-type]
    assert 70 < below < 130


def test_draws_depend_on_the_seed_and_the_name_only() -> None:
    first = RandomSearch(FOUR, count=5, seed=3).combinations()

    assert RandomSearch(FOUR, count=9, seed=3).combinations()[:5] == first
    assert RandomSearch(FOUR, count=5, seed=4).combinations() != first
    alone = RandomSearch({"gamma": FOUR["gamma"]}, count=3, seed=3).combinations()
    assert [values["gamma"] for values in alone] == [values["gamma"] for values in first[:3]]
    # Fixed numbers: a new version must not change the draws of a resumed search.
    assert [values["gamma"] for values in alone] == [0.9764, 0.9395, 0.9315]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (ParamList([]), "the list is empty"),
        (ParamList([1]), "one mapping"),  # type: ignore[list-item]
        (ParamGrid(7), "pairs of a flag"),  # type: ignore[arg-type]
        (ParamGrid([("seed", [])]), "grid of seed: has no values"),
        (ParamGrid([("seed", [1]), (("gamma", "seed"), [(1, 2)])]), "seed: is varied twice"),
        (ParamGrid([(("gamma", "seed"), [(1, 2, 3)])]), "grid of gamma, seed: (1, 2, 3) must be 2 values"),
        (ParamGrid([(3, [1])]), "3: must be the name of a flag"),  # type: ignore[list-item]
        (RandomSearch({}, count=3), "needs at least one flag"),
        (RandomSearch({"gamma": Uniform(0.9, 0.5)}, count=3), "gamma: low (0.9) must be less"),
        (RandomSearch({"gamma": Uniform(0.9, math.inf)}, count=3), "the bound inf must be a finite number"),
        (RandomSearch({"gamma": Uniform("0", 1)}, count=3), "the bound '0' must be a finite number"),  # type: ignore[arg-type]
        (RandomSearch({"lr": LogUniform(0.0, 1.0)}, count=3), "low is 0.0: must be greater than 0"),
        (RandomSearch({"n": IntUniform(1, 2.5)}, count=3), "must be a whole number"),
        (RandomSearch({"n": [1, 2]}, count=3), "n: [1, 2] is not a distribution"),  # type: ignore[dict-item]
        (RandomSearch({("a", "b"): Uniform(0, 1)}, count=3), "are drawn from a Choice"),
        (RandomSearch({("a", "b"): Choice([(1,)])}, count=3), "a, b: (1,) must be 2 values"),
        (RandomSearch({"n": Choice([1, 2])}, count=0), "count=0 must be at least 1"),
        (RandomSearch({"n": Choice([1, 2])}, count=3), "only 2 different combinations were found"),
        (RandomSearch({"n": Choice([1, 2])}, count=10_000), "only 2 different combinations were found"),
        (
            RandomSearch({"gamma": Uniform(0, 1)}, count=10**9),
            "count is 1,000,000,000, and an experiment at most 10,000",
        ),
        (ParamGrid([(f"x{axis}", range(10)) for axis in range(12)]), "the grid has 1,000,000,000,000, and"),
        (ParamGrid({"seed": range(10**9)}), "the grid has 1,000,000,000, and"),
        (ParamList([{}] * 10_001), "the list has 10,001, and"),
    ],
)
def test_invalid_declaration_is_refused_without_expanding_it(declared: Parameters, problem: str) -> None:
    start = time.process_time()
    (found,) = declared.problems()

    assert problem in found
    assert time.process_time() - start < 1.0


def test_a_billion_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="seeds: count is 1,000,000,000"):
        seeds(10**9)
