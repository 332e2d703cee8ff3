"""Mutated values stay in range; reward shaping keeps its structure and signs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.config.field import How
from sfactory.config.flags import config_of
from sfactory.config.hyperparameters import Hyperparameter, hyperparameters, mutable_flags
from sfactory.pbt.mutation import (
    SHAPING_RANGE,
    Perturbation,
    Values,
    leaves,
    mutated,
    mutated_shaping,
    new_value,
    shaping_problem,
)

TURNS = 1000
SEEDS = st.integers(0, 2**63 - 1)
POSITIVE = st.floats(1e-12, 1e12)
BELOW_ONE = st.floats(0, 1, exclude_max=True)
ANY = st.floats(-1e300, 1e300)
WHOLE = st.integers(1, 10**9)
PERTURBATIONS = st.builds(
    lambda rate, bounds: Perturbation(rate, *sorted(bounds)),
    st.floats(0, 1),
    st.tuples(st.floats(1, 100, exclude_min=True), st.floats(1, 100, exclude_min=True)),
)
NUMBERS = st.floats(-1e308, 1e308) | st.integers(-(10**12), 10**12)
SHAPINGS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        NUMBERS | st.booleans() | st.none() | st.text(max_size=5),
        lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=4) | st.lists(inner, max_size=3),
        max_leaves=12,
    ),
    max_size=4,
)


@st.composite
def declarations(draw: st.DrawFn) -> Hyperparameter:
    """Any valid hyperparameter."""
    how = draw(st.sampled_from(How))
    whole = how is How.DOUBLE or (how is not How.ONE_MINUS and draw(st.booleans()))
    numbers = {How.FACTOR: POSITIVE, How.LOG_UNIFORM: POSITIVE, How.ONE_MINUS: BELOW_ONE}.get(how, ANY)
    low, default, high = sorted(draw(st.tuples(*[WHOLE if whole else numbers] * 3)))
    return Hyperparameter("x", low, high, how, whole, default)


@settings(max_examples=60, deadline=None)
@given(declared=declarations(), by=PERTURBATIONS, seed=SEEDS)
def test_a_thousand_mutations_stay_in_range(declared: Hyperparameter, by: Perturbation, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values: Values = {"x": declared.default, "other": 7.0}

    for _ in range(TURNS):
        values = mutated(values, [declared], by, rng)

        assert declared.low <= values["x"] <= declared.high
        assert isinstance(values["x"], int) if declared.whole else math.isfinite(values["x"])
    assert values["other"] == 7.0


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, by=PERTURBATIONS)
def test_hyperparameters_of_the_flags_stay_in_range(seed: int, by: Perturbation) -> None:
    wishes: dict[str, dict[str, float]] = {
        name: {} for name in ("adam_beta1", "adam_eps", "vtrace_rho", "vtrace_lambda", "num_epochs")
    }
    config = config_of(
        {
            "num_policies": 4,
            "with_pbt": True,
            "pbt_optimize_gamma": True,
            "pbt_optimize_batch_size": True,
            "pbt_hyperparameters": wishes,
        }
    )
    declared, rng = hyperparameters(config), np.random.default_rng(seed)
    values: Values = {each.name: each.default for each in declared}

    for _ in range(100):
        values = mutated(values, declared, by, rng)

        assert [each.name for each in declared if not each.low <= values[each.name] <= each.high] == []
    assert len(declared) == 13


@settings(max_examples=60, deadline=None)
@given(declared=declarations(), by=PERTURBATIONS, seed=SEEDS, value=ANY)
def test_value_out_of_range_returns_into_it(
    declared: Hyperparameter, by: Perturbation, seed: int, value: float
) -> None:
    # As after a session with another range.
    outside = int(value) if declared.whole else value

    if declared.how is not How.DOUBLE:
        assert declared.low <= new_value(outside, declared, by, np.random.default_rng(seed)) <= declared.high


def draws(how: How, value: float, low: float, high: float, whole: bool = False, default: float = -1) -> list[float]:
    declared = Hyperparameter("x", low, high, how, whole, value if default == -1 else default)
    rng = np.random.default_rng(0)
    return [new_value(value, declared, Perturbation(1.0, 1.1, 1.5), rng) for _ in range(3000)]


def test_factor_is_within_its_bounds_in_both_directions() -> None:
    ratios = [value / 0.01 for value in draws(How.FACTOR, 0.01, 1e-6, 1.0)]
    ups, downs = [r for r in ratios if r > 1], [r for r in ratios if r < 1]

    assert 1200 < len(ups) < 1800
    assert min(ups) >= 1.1 - 1e-9
    assert max(ups) <= 1.5 + 1e-9
    assert max(downs) <= 1 / 1.1 + 1e-9
    assert min(downs) >= 1 / 1.5 - 1e-9


def test_one_minus_changes_the_distance_from_one() -> None:
    horizons = [0.01 / (1 - value) for value in draws(How.ONE_MINUS, 0.99, 0.5, 0.9999) if value != 0.99]

    assert 1 / 1.5 - 1e-9 <= min(horizons) < 0.68
    assert 1.49 < max(horizons) <= 1.5 + 1e-9


def test_whole_numbers_are_doubled_halved_or_moved_by_one() -> None:
    assert {*draws(How.DOUBLE, 1024, 256, 4096, whole=True)} == {512, 1024, 2048}
    assert {*draws(How.DOUBLE, 33, 8, 128, whole=True)} == {33, 66}
    assert {*draws(How.DOUBLE, 4096, 256, 4096, whole=True)} == {2048, 4096}
    assert {*draws(How.DOUBLE, 5, 4, 6, whole=True)} == {5}
    assert {*draws(How.FACTOR, 1, 1, 16, whole=True)} == {1, 2}
    assert {*draws(How.FACTOR, 2, 1, 16, whole=True)} == {1, 2, 3}


def test_uniform_and_log_uniform_cover_their_range() -> None:
    uniform = draws(How.UNIFORM, 0.5, 0.0, 1.0)
    log_uniform = draws(How.LOG_UNIFORM, 1e-4, 1e-6, 1e-2)

    assert min(uniform) < 0.01
    assert max(uniform) > 0.99
    assert 0.45 < float(np.mean(uniform)) < 0.55
    assert -4.2 < float(np.mean(np.log10(log_uniform))) < -3.8
    assert {*draws(How.UNIFORM, 2, 1, 4, whole=True)} == {1, 2, 3, 4}


def test_one_mutation_in_a_hundred_resets_to_the_default() -> None:
    back = draws(How.FACTOR, 0.1, 1e-6, 10.0, default=7.0).count(7.0)

    assert 10 < back < 60


def test_rate_is_the_share_of_mutated_values() -> None:
    rng = np.random.default_rng(0)
    declared = [Hyperparameter(name, 1e-6, 1.0, How.FACTOR, False, 0.01) for name in "abcd"]
    values = dict.fromkeys("abcd", 0.01)

    new = [mutated(values, declared, Perturbation(0.15, 1.1, 1.5), rng) for _ in range(2500)]
    changed = sum(value != 0.01 for each in new for value in each.values())

    assert 0.13 < changed / 10_000 < 0.17
    assert mutated(values, declared, Perturbation(0.0, 1.1, 1.5), rng, at_least_one=True) == values


def test_at_least_one_value_changes_at_a_low_rate() -> None:
    rng = np.random.default_rng(0)
    declared = [Hyperparameter(name, 1e-6, 1.0, How.FACTOR, False, 0.01) for name in "abcd"]
    values = dict.fromkeys("abcd", 0.01)

    chosen = [mutated(values, declared, Perturbation(1e-9, 1.1, 1.5), rng, at_least_one=True) for _ in range(200)]

    assert {*(name for each in chosen for name, value in each.items() if value != 0.01)} == {*"abcd"}
    assert all(sum(value != 0.01 for value in each.values()) <= 1 for each in chosen)


def test_illegal_value_is_not_used() -> None:
    declared = [Hyperparameter("a", 1.0, 100.0, How.FACTOR, False, 10.0)]
    asked: list[tuple[str, dict[str, float]]] = []

    def legal(name: str, values: Values) -> bool:
        asked.append((name, dict(values)))
        return False

    assert mutated({"a": 10.0}, declared, Perturbation(1.0, 1.1, 1.5), np.random.default_rng(0), legal) == {"a": 10.0}
    ((name, values),) = asked
    assert name == "a"
    assert values["a"] != 10.0


def test_range_of_every_mutable_flag_suits_its_kind_of_mutation() -> None:
    for name, mutable in mutable_flags().items():
        assert mutable.low < mutable.high, name
        if mutable.how in (How.FACTOR, How.LOG_UNIFORM, How.DOUBLE):
            assert mutable.low > 0, name
        if mutable.how is How.ONE_MINUS:
            assert 0 <= mutable.low < mutable.high < 1, name


def structure(value: Any) -> Any:
    """Everything that must not change: keys, types, signs, and values that are not numbers."""
    if isinstance(value, dict):
        return {key: structure(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [structure(inner) for inner in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return "number", (value > 0) - (value < 0)


@settings(max_examples=100, deadline=None)
@given(shaping=SHAPINGS, by=PERTURBATIONS, seed=SEEDS)
def test_reward_shaping_keeps_structure_signs_and_magnitude(
    shaping: dict[str, Any], by: Perturbation, seed: int
) -> None:
    rng, new = np.random.default_rng(seed), shaping

    for _ in range(30):
        new = dict(mutated_shaping(new, shaping, by, rng))

    assert structure(new) == structure(shaping)
    assert shaping_problem(new) is None
    for (path, value), (other, origin) in zip(leaves(new), leaves(shaping), strict=True):
        assert path == other
        assert abs(value) <= abs(origin) * SHAPING_RANGE
        assert abs(value) >= abs(origin) / SHAPING_RANGE * (1 - 1e-9)


def test_nested_reward_shaping_is_mutated_number_by_number() -> None:
    shaping = {"delta": {"FRAG": [1.0, -1.5], "HITS": 0.01}, "selected_weapon": {"1": 0.0}, "on": True, "name": "x"}

    new = mutated_shaping(shaping, shaping, Perturbation(1.0, 1.1, 1.5), np.random.default_rng(1))

    assert structure(dict(new)) == structure(shaping)
    assert new["delta"]["FRAG"][0] != 1.0
    assert new["delta"]["FRAG"][1] != -1.5
    assert new["delta"]["HITS"] != 0.01
    assert new["selected_weapon"] == {"1": 0.0}
    assert shaping["delta"] == {"FRAG": [1.0, -1.5], "HITS": 0.01}


ENDLESS: dict[str, Any] = {}
ENDLESS["a"] = ENDLESS


@pytest.mark.parametrize(
    ("shaping", "text"),
    [
        (3, "not a int"),
        ({"a": {1: 2.0}}, "has the key 1 at a"),
        ({"a": {"b": math.nan}}, "holds nan at a.b"),
        ({"a": {"b": {3}}}, "holds {3} at a.b"),
        (ENDLESS, "nested more than 20 deep"),
    ],
)
def test_invalid_reward_shaping_is_described(shaping: object, text: str) -> None:
    assert text in str(shaping_problem(shaping))
