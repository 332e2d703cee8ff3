"""Mutated values stay in range; reward shaping keeps its structure and signs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactory.config.field import How
from sfactory.config.flags import config_of, values_of
from sfactory.config.hyperparameters import Hyperparameter, mutable_flags
from sfactory.config.schema import PopulationConfig
from sfactory.pbt.mutation import SHAPING_RANGE, Values, leaves, mutated, mutated_shaping, new_value, shaping_problem


def by(rate: float, least: float = 1.1, most: float = 1.5) -> PopulationConfig:
    return PopulationConfig(pbt_mutation_rate=rate, pbt_perturb_min=least, pbt_perturb_max=most)


SEEDS = st.integers(0, 2**63 - 1)
POSITIVE = st.floats(1e-12, 1e12)
BELOW_ONE = st.floats(0, 1, exclude_max=True)
ANY = st.floats(-1e300, 1e300)
WHOLE = st.integers(1, 10**9)
PERTURBATIONS = st.builds(
    lambda rate, bounds: by(rate, *sorted(bounds)),
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
# Four hyperparameters, each mutated by a factor of 1.1 to 1.5.
FOUR = [Hyperparameter(name, 1e-6, 1.0, How.FACTOR, False, 0.01) for name in "abcd"]
START = dict.fromkeys("abcd", 0.01)


@st.composite
def declarations(draw: st.DrawFn) -> Hyperparameter:
    """Any valid hyperparameter."""
    how = draw(st.sampled_from(How))
    whole = how is How.DOUBLE or (how is not How.ONE_MINUS and draw(st.booleans()))
    numbers = {How.FACTOR: POSITIVE, How.LOG_UNIFORM: POSITIVE, How.ONE_MINUS: BELOW_ONE}.get(how, ANY)
    low, default, high = sorted(draw(st.tuples(*[WHOLE if whole else numbers] * 3)))
    return Hyperparameter("x", low, high, how, whole, default)


@settings(max_examples=60, deadline=None)
@given(declared=declarations(), options=PERTURBATIONS, seed=SEEDS, value=ANY)
def test_a_thousand_mutations_stay_in_range(
    declared: Hyperparameter, options: PopulationConfig, seed: int, value: float
) -> None:
    rng = np.random.default_rng(seed)
    values: Values = {"x": declared.default, "other": 7.0}

    for _ in range(1000):
        values = mutated(values, [declared], options, rng)

        assert declared.low <= values["x"] <= declared.high
        assert isinstance(values["x"], int) if declared.whole else math.isfinite(values["x"])
    assert values["other"] == 7.0
    if declared.how is not How.DOUBLE:  # a value out of range, as after a session with another range, returns into it
        outside = int(value) if declared.whole else value
        assert declared.low <= new_value(outside, declared, options, rng) <= declared.high


def draws(how: How, value: float, low: float, high: float, whole: bool = False, default: float = -1) -> list[float]:
    declared = Hyperparameter("x", low, high, how, whole, value if default == -1 else default)
    rng = np.random.default_rng(0)
    return [new_value(value, declared, by(1.0), rng) for _ in range(3000)]


def test_factors_stay_within_their_bounds_in_both_directions() -> None:
    ratios = [value / 0.01 for value in draws(How.FACTOR, 0.01, 1e-6, 1.0)]
    # ONE_MINUS multiplies the distance from 1.
    horizons = [0.01 / (1 - value) for value in draws(How.ONE_MINUS, 0.99, 0.5, 0.9999)]

    for factors in (ratios, horizons):
        ups, downs = [r for r in factors if r > 1 + 1e-9], [r for r in factors if r < 1 - 1e-9]
        assert 1200 < len(ups) < 1800
        assert 1.1 - 1e-9 <= min(ups) < max(ups) <= 1.5 + 1e-9
        assert 1 / 1.5 - 1e-9 <= min(downs) < max(downs) <= 1 / 1.1 + 1e-9
        assert (min(downs) < 0.68, max(ups) > 1.49) == (True, True)


@pytest.mark.parametrize(
    ("how", "value", "low", "high", "drawn"),
    [
        (How.DOUBLE, 1024, 256, 4096, {512, 1024, 2048}),
        (How.DOUBLE, 33, 8, 128, {33, 66}),
        (How.DOUBLE, 4096, 256, 4096, {2048, 4096}),
        (How.DOUBLE, 5, 4, 6, {5}),
        (How.FACTOR, 1, 1, 16, {1, 2}),
        (How.FACTOR, 2, 1, 16, {1, 2, 3}),
        (How.UNIFORM, 2, 1, 4, {1, 2, 3, 4}),
    ],
)
def test_whole_numbers_stay_whole_and_move(how: How, value: int, low: int, high: int, drawn: set[int]) -> None:
    assert {*draws(how, value, low, high, whole=True)} == drawn


def test_uniform_values_cover_their_range_and_one_in_a_hundred_is_the_default() -> None:
    uniform = draws(How.UNIFORM, 0.5, 0.0, 1.0)
    log_uniform = np.log10(draws(How.LOG_UNIFORM, 1e-4, 1e-6, 1e-2))

    for values in (np.array(uniform), (log_uniform + 6) / 4):
        assert values.min() < 0.01
        assert values.max() > 0.99
        assert 0.45 < values.mean() < 0.55
    assert 10 < draws(How.FACTOR, 0.1, 1e-6, 10.0, default=7.0).count(7.0) < 60


def test_rate_is_the_share_of_mutated_values_and_one_value_can_be_demanded() -> None:
    rng = np.random.default_rng(0)

    new = [mutated(START, FOUR, by(0.15), rng) for _ in range(2500)]
    one = [mutated(START, FOUR, by(1e-9), rng, at_least_one=True) for _ in range(200)]
    none = mutated(START, FOUR, by(0.0), rng, at_least_one=True)

    assert 0.13 < sum(value != 0.01 for each in new for value in each.values()) / 10_000 < 0.17
    assert {*(name for each in one for name, value in each.items() if value != 0.01)} == {*"abcd"}
    assert all(sum(value != 0.01 for value in each.values()) <= 1 for each in one)
    assert none == START


def test_illegal_value_is_not_used() -> None:
    new = mutated(START, FOUR, by(1.0), np.random.default_rng(0), lambda name, values: name == "b" and values != START)

    assert {name for name, value in new.items() if value != START[name]} == {"b"}


def test_range_of_every_mutable_flag_suits_its_default_and_its_kind_of_mutation() -> None:
    defaults = values_of(config_of({}))

    for name, mutable in mutable_flags().items():
        low, default, high = mutable.low, defaults[name], mutable.high
        assert isinstance(default, int | float)
        assert mutable.relative or default == 0 or low <= default <= high, name
        assert low < high, name
        if mutable.how in (How.FACTOR, How.LOG_UNIFORM, How.DOUBLE):
            assert low > 0, name
        if mutable.how is How.ONE_MINUS:
            assert 0 <= low < high < 1, name


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
@given(shaping=SHAPINGS, options=PERTURBATIONS, seed=SEEDS)
def test_reward_shaping_keeps_structure_signs_and_magnitude(
    shaping: dict[str, Any], options: PopulationConfig, seed: int
) -> None:
    rng, new = np.random.default_rng(seed), shaping

    for _ in range(30):
        new = dict(mutated_shaping(new, shaping, options, rng))

    assert structure(new) == structure(shaping)
    assert shaping_problem(new) is None
    for (path, value), (other, origin) in zip(leaves(new), leaves(shaping), strict=True):
        assert path == other
        assert abs(origin) / SHAPING_RANGE * (1 - 1e-9) <= abs(value) <= abs(origin) * SHAPING_RANGE


def test_nested_reward_shaping_is_mutated_number_by_number() -> None:
    shaping = {"delta": {"FRAG": [1.0, -1.5], "HITS": 0.01}, "selected_weapon": {"1": 0.0}, "on": True, "name": "x"}

    new = mutated_shaping(shaping, shaping, by(1.0), np.random.default_rng(1))

    assert structure(dict(new)) == structure(shaping)
    was, now = dict(leaves(shaping)), dict(leaves(new))
    assert [path[-1] for path, value in now.items() if value == was[path]] == ["1"]  # a 0 stays 0
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
