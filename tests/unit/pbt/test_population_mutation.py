"""Whatever is declared, at whatever rate: mutated values stay in range, and shaping keeps its structure and signs."""

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
    """Any hyperparameter that the rules let pass."""
    how = draw(st.sampled_from(How))
    whole = how is How.DOUBLE or (how is not How.ONE_MINUS and draw(st.booleans()))
    numbers = {How.FACTOR: POSITIVE, How.LOG_UNIFORM: POSITIVE, How.ONE_MINUS: BELOW_ONE}.get(how, ANY)
    low, default, high = sorted(draw(st.tuples(*[WHOLE if whole else numbers] * 3)))
    return Hyperparameter("x", low, high, how, whole, default)


@settings(max_examples=60, deadline=None)
@given(declared=declarations(), by=PERTURBATIONS, seed=SEEDS)
def test_a_thousand_turns_of_mutation_stay_in_range(declared: Hyperparameter, by: Perturbation, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values: Values = {"x": declared.default, "other": 7.0}

    for _ in range(TURNS):
        values = mutated(values, [declared], by, rng)

        assert declared.low <= values["x"] <= declared.high
        assert isinstance(values["x"], int) if declared.whole else math.isfinite(values["x"])
    assert values["other"] == 7.0


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, by=PERTURBATIONS)
def test_what_the_flags_declare_stays_in_range_all_together(seed: int, by: Perturbation) -> None:
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
def test_a_value_out_of_range_comes_back_into_it(
    declared: Hyperparameter, by: Perturbation, seed: int, value: float
) -> None:
    # As after a session that was given another range.
    outside = int(value) if declared.whole else value

    if declared.how is not How.DOUBLE:
        assert declared.low <= new_value(outside, declared, by, np.random.default_rng(seed)) <= declared.high


def draws(how: How, value: float, low: float, high: float, whole: bool = False, default: float = -1) -> list[float]:
    declared = Hyperparameter("x", low, high, how, whole, value if default == -1 else default)
    rng = np.random.default_rng(0)
    return [new_value(value, declared, Perturbation(1.0, 1.1, 1.5), rng) for _ in range(3000)]


def test_a_factor_goes_up_and_down_between_its_bounds() -> None:
    ratios = [value / 0.01 for value in draws(How.FACTOR, 0.01, 1e-6, 1.0)]
    ups, downs = [r for r in ratios if r > 1], [r for r in ratios if r < 1]

    assert 1200 < len(ups) < 1800
    assert min(ups) >= 1.1 - 1e-9
    assert max(ups) <= 1.5 + 1e-9
    assert max(downs) <= 1 / 1.1 + 1e-9
    assert min(downs) >= 1 / 1.5 - 1e-9


def test_what_is_near_one_changes_by_its_distance_from_one() -> None:
    horizons = [0.01 / (1 - value) for value in draws(How.ONE_MINUS, 0.99, 0.5, 0.9999) if value != 0.99]

    assert 1 / 1.5 - 1e-9 <= min(horizons) < 0.68
    assert 1.49 < max(horizons) <= 1.5 + 1e-9


def test_a_batch_is_doubled_or_halved_and_an_odd_number_only_doubled() -> None:
    assert {*draws(How.DOUBLE, 1024, 256, 4096, whole=True)} == {512, 1024, 2048}
    assert {*draws(How.DOUBLE, 33, 8, 128, whole=True)} == {33, 66}
    assert {*draws(How.DOUBLE, 4096, 256, 4096, whole=True)} == {2048, 4096}
    assert {*draws(How.DOUBLE, 5, 4, 6, whole=True)} == {5}


def test_small_whole_numbers_move_by_one_at_least() -> None:
    assert {*draws(How.FACTOR, 1, 1, 16, whole=True)} == {1, 2}
    assert {*draws(How.FACTOR, 2, 1, 16, whole=True)} == {1, 2, 3}


def test_what_is_drawn_anew_covers_its_range() -> None:
    uniform = draws(How.UNIFORM, 0.5, 0.0, 1.0)
    log_uniform = draws(How.LOG_UNIFORM, 1e-4, 1e-6, 1e-2)

    assert min(uniform) < 0.01
    assert max(uniform) > 0.99
    assert 0.45 < float(np.mean(uniform)) < 0.55
    assert -4.2 < float(np.mean(np.log10(log_uniform))) < -3.8
    assert {*draws(How.UNIFORM, 2, 1, 4, whole=True)} == {1, 2, 3, 4}


def test_one_mutation_in_a_hundred_goes_back_to_the_default() -> None:
    back = draws(How.FACTOR, 0.1, 1e-6, 10.0, default=7.0).count(7.0)

    assert 10 < back < 60


def test_the_rate_says_how_many_are_mutated() -> None:
    rng = np.random.default_rng(0)
    declared = [Hyperparameter(name, 1e-6, 1.0, How.FACTOR, False, 0.01) for name in "abcd"]
    values = dict.fromkeys("abcd", 0.01)

    new = [mutated(values, declared, Perturbation(0.15, 1.1, 1.5), rng) for _ in range(2500)]
    changed = sum(value != 0.01 for each in new for value in each.values())

    assert 0.13 < changed / 10_000 < 0.17
    assert mutated(values, declared, Perturbation(0.0, 1.1, 1.5), rng, at_least_one=True) == values


def test_a_first_mutation_changes_something_even_at_a_low_rate() -> None:
    rng = np.random.default_rng(0)
    declared = [Hyperparameter(name, 1e-6, 1.0, How.FACTOR, False, 0.01) for name in "abcd"]
    values = dict.fromkeys("abcd", 0.01)

    chosen = [mutated(values, declared, Perturbation(1e-9, 1.1, 1.5), rng, at_least_one=True) for _ in range(200)]

    assert {*(name for each in chosen for name, value in each.items() if value != 0.01)} == {*"abcd"}
    assert all(sum(value != 0.01 for value in each.values()) <= 1 for each in chosen)


def test_a_value_that_does_not_go_with_the_others_is_not_taken() -> None:
    declared = [Hyperparameter("a", 1.0, 100.0, How.FACTOR, False, 10.0)]
    asked: list[tuple[str, dict[str, float]]] = []

    def legal(name: str, values: Values) -> bool:
        asked.append((name, dict(values)))
        return False

    assert mutated({"a": 10.0}, declared, Perturbation(1.0, 1.1, 1.5), np.random.default_rng(0), legal) == {"a": 10.0}
    ((name, values),) = asked
    assert name == "a"
    assert values["a"] != 10.0


@pytest.mark.parametrize("name", mutable_flags())
def test_every_flag_that_may_be_mutated_declares_a_range_that_goes_with_its_way(name: str) -> None:
    mutable = mutable_flags()[name]

    assert mutable.low < mutable.high
    if mutable.how in (How.FACTOR, How.LOG_UNIFORM, How.DOUBLE):
        assert mutable.low > 0
    if mutable.how is How.ONE_MINUS:
        assert 0 <= mutable.low < mutable.high < 1


def structure(value: Any) -> Any:
    """What must not change: keys, kinds, signs, and everything that is no number."""
    if isinstance(value, dict):
        return {key: structure(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [structure(inner) for inner in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return "number", (value > 0) - (value < 0)


@settings(max_examples=100, deadline=None)
@given(shaping=SHAPINGS, by=PERTURBATIONS, seed=SEEDS)
def test_a_reward_shaping_keeps_its_structure_its_signs_and_its_order_of_magnitude(
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


def test_a_nested_reward_shaping_is_mutated_number_by_number() -> None:
    shaping = {"delta": {"FRAG": [1.0, -1.5], "HITS": 0.01}, "selected_weapon": {"1": 0.0}, "on": True, "name": "x"}

    new = mutated_shaping(shaping, shaping, Perturbation(1.0, 1.1, 1.5), np.random.default_rng(1))

    assert structure(dict(new)) == structure(shaping)
    assert new["delta"]["FRAG"][0] != 1.0
    assert new["delta"]["FRAG"][1] != -1.5
    assert new["delta"]["HITS"] != 0.01
    assert new["selected_weapon"] == {"1": 0.0}
    assert shaping["delta"] == {"FRAG": [1.0, -1.5], "HITS": 0.01}


@pytest.mark.parametrize(
    ("shaping", "text"),
    [
        (3, "must be a mapping of names to numbers or further mappings, not a int"),
        ({"a": {1: 2.0}}, "has the key 1 at a; keys must be text"),
        ({"a": {"b": math.nan}}, "holds nan at a.b; a value must be a finite number, text, True, False or None"),
        ({"a": {"b": {3}}}, "holds {3} at a.b; a value must be a finite number, text, True, False or None"),
    ],
)
def test_a_reward_shaping_that_is_none_is_told_why(shaping: object, text: str) -> None:
    assert shaping_problem(shaping) == text


def test_a_reward_shaping_without_an_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless

    text = shaping_problem(endless)

    assert text is not None
    assert text.startswith("is nested more than 20 deep")
