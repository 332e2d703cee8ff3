"""Observations of any structure are copied into rows unchanged, and actions fit the env's space.

Vector envs: a batch is converted exactly as its envs one by one would be.
"""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch
from gymnasium.vector.utils import batch_space, iterate

from sfactory.config.schema import ModelConfig
from sfactory.env.conversion import BadObservation, BlockWriter, ObsWriter, value_flaw
from sfactory.spec import EnvSpec, TensorSpec

N = 3
INT32: Any = np.int32  # which MultiDiscrete takes, though its annotations do not say so
POINT = spaces.Box(-1, 1, (2,), np.float32)
GOOD_POINT = np.zeros(2, np.float32)
OBSERVATION_SPACES: dict[str, spaces.Space[Any]] = {
    "vector": POINT,
    "double precision vector": spaces.Box(-1, 1, (2,), np.float64),
    "image": spaces.Box(0, 255, (5, 4, 3), np.uint8),
    "scalar box": spaces.Box(-1, 1, (), np.float32),
    "number": spaces.Discrete(7),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "number": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([POINT, spaces.Discrete(3)]),
    "nested": spaces.Dict({"a": spaces.Tuple([spaces.Dict({"b": POINT}), spaces.Discrete(9)]), "c": POINT}),
}


def spec_of(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> EnvSpec:
    return EnvSpec.of_spaces(observation, action or spaces.Discrete(2))


def writer_of(space: spaces.Space[Any]) -> ObsWriter:
    return ObsWriter(spec_of(space), space)


def block_writer_of(space: spaces.Space[Any]) -> BlockWriter:
    return BlockWriter(spec_of(space), space)


def at_path(obs: Any, key: str) -> Any:
    """The leaf of ``obs`` that the key names."""
    for part in [] if key == "obs" else key.split("/"):
        obs = obs[int(part)] if isinstance(obs, tuple) else obs[part]
    return obs


@pytest.mark.parametrize("name", OBSERVATION_SPACES)
def test_every_leaf_of_an_observation_is_written_to_its_row(name: str) -> None:
    space = OBSERVATION_SPACES[name]
    batched = batch_space(space, N)
    batched.seed(3)
    batch, spec = batched.sample(), spec_of(space)
    observations = list(iterate(batched, batch))
    rows, block_rows = ({key: np.zeros((N, *leaf.shape), leaf.dtype) for key, leaf in spec.obs} for _ in range(2))

    ObsWriter(spec, space).write(observations, rows)
    BlockWriter(spec, space).write(batch, block_rows)

    ObsWriter(spec, space).check_all(observations, N, "here")
    for key, leaf in spec.obs:
        for env, obs in enumerate(observations):
            assert np.array_equal(rows[key][env], np.asarray(at_path(obs, key)).astype(leaf.dtype)), key
        np.testing.assert_array_equal(block_rows[key], rows[key])


@pytest.mark.parametrize(
    ("name", "obs", "text"),
    [
        ("vector", np.zeros(3, np.float32), r"'obs' has shape \(3,\) and dtype float32.*promises \(2,\) and float32"),
        ("vector", np.zeros((1, 2), np.float32), r"'obs' has shape \(1, 2\)"),
        ("vector", 0.5, r"'obs' has shape \(\)"),
        ("image", np.zeros((5, 4, 3)), "dtype float64.*promises .*uint8"),
        ("number", 1.5, "'obs' has .* dtype float64.*int64"),
        ("nested", {"a": ({"b": np.zeros(5, np.float32)}, 1), "c": GOOD_POINT}, r"'a/0/b' has shape \(5,\)"),
        ("dict", {"image": np.zeros((2, 2), np.uint8)}, "'number' is missing or no array"),
        ("tuple", (GOOD_POINT,), "'1' is missing or no array"),
        ("dict", np.zeros(2), "'image' is missing or no array"),
        ("dict", None, "'image' is missing or no array"),
        ("vector", [[1.0], [1.0, 2.0]], "'obs' is missing or no array"),
        ("vector", None, "'obs' has shape"),
    ],
)
def test_an_observation_that_does_not_fit_its_space_is_refused(name: str, obs: Any, text: str) -> None:
    with pytest.raises(BadObservation, match=f"^reset, env 0: .*{text}"):
        writer_of(OBSERVATION_SPACES[name]).check_all([obs], 1, "reset")


def test_flaws_name_the_first_bad_leaf_of_each_env() -> None:
    good = {"a": ({"b": GOOD_POINT}, 1), "c": GOOD_POINT}
    infinite = {**good, "a": ({"b": np.array([0.0, -np.inf], np.float32)}, 1)}
    wide = {"a": good["a"], "c": np.array([np.nan, 0.0, 0.0], np.float32)}
    too_large = {**good, "c": np.array([0.0, 1e39])}

    flaws = writer_of(OBSERVATION_SPACES["nested"]).flaws([good, infinite, wide, too_large, {"c": GOOD_POINT}], 5)

    assert {env: flaw.key for env, flaw in flaws.items()} == {1: "a/0/b", 2: "c", 3: "c", 4: "a/0/b"}
    assert flaws[1].text == flaws[3].text == "holds NaN or infinity"
    assert flaws[2].text.startswith("has shape (3,)")
    assert flaws[4].text.startswith("is missing or no array")


def test_wrong_lengths_that_cancel_out_are_refused() -> None:
    rows = {"obs": np.zeros((2, 2), np.float32)}
    with pytest.raises(BadObservation, match=r"env 0 of the split: observation 'obs' has shape \(1,\)"):
        writer_of(OBSERVATION_SPACES["vector"]).write([np.zeros(1, np.float32), np.zeros(3, np.float32)], rows)


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
@pytest.mark.parametrize("given", [np.int64, np.int16, np.uint8])
def test_integers_of_another_dtype_are_written_as_they_are_or_refused(shape: tuple[int, ...], given: Any) -> None:
    space = spaces.Box(-128, 127, shape, np.int8)
    good = [np.full(shape, number, given) for number in (5, 100, 127)]
    bad = [*good[:2], np.full(shape, 200, given)]
    one_by_one, at_once = writer_of(space), block_writer_of(space)
    writer: Any
    observations: Any

    for _ in range(2):
        for writer, observations in ((one_by_one, good), (at_once, np.stack(good))):
            rows = {"obs": np.zeros((N, *shape), np.int8)}
            writer.write(observations, rows)
            assert np.array_equal(rows["obs"], good)
        for writer, observations in ((one_by_one, bad), (at_once, np.stack(bad))):
            with pytest.raises(BadObservation, match="'obs' holds numbers that are none of int8"):
                writer.write(observations, {"obs": np.zeros((N, *shape), np.int8)})


def test_a_fraction_for_an_integer_is_refused_and_not_truncated() -> None:
    with pytest.raises(BadObservation, match=r"env 1 of the split: observation 'obs' has .* dtype float64"):
        writer_of(spaces.Discrete(7)).write([3, 1.5], {"obs": np.zeros(2, np.int64)})


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (np.zeros((N, 3), np.float32), r"has shape \(3, 3\).*promise \(3, 2\)"),
        (np.zeros((N - 1, 2), np.float32), r"has shape \(2, 2\)"),
        (np.zeros((N, 2), np.complex64), "dtype complex64"),
        (torch.zeros((N, 2), requires_grad=True), r"is missing or no array.*detach\(\)"),
        (None, "has shape"),
        ({"a": 1}, "has shape"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_as_a_flaw_of_all_envs(batch: Any, text: str) -> None:
    writer = block_writer_of(POINT)

    with pytest.raises(BadObservation, match=f"first reset: observation 'obs' .*{text}"):
        writer.check_all(batch, N, "first reset")
    with pytest.raises(BadObservation, match="a step: observation 'obs'"):
        writer.write(batch, {"obs": np.zeros((N, 2), np.float32)})
    assert {env: flaw.key for env, flaw in writer.flaws(batch, N).items()} == dict.fromkeys(range(N), "obs")


def test_in_a_batch_a_number_that_is_not_finite_is_a_flaw_of_its_own_env() -> None:
    space = spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, (), np.float32)])
    batch = (np.zeros((N, 2), np.int8), np.array([0.0, np.nan, 1.0], np.float32))

    flaws = block_writer_of(space).flaws(batch, N)

    assert {env: (flaw.key, flaw.text) for env, flaw in flaws.items()} == {1: ("1", "holds NaN or infinity")}


def test_a_number_that_the_dtype_does_not_hold_is_a_flaw() -> None:
    spec = TensorSpec((2,), "int8")

    assert not value_flaw(np.array([-128, 127]), spec)
    assert value_flaw(np.array([0, 300]), spec) == "holds numbers that are none of int8"
    assert value_flaw([0, 2**40], TensorSpec((2,), "int32")).endswith("none of int32")


def test_numbers_beyond_float32_are_a_flaw_in_any_dtype() -> None:
    wide = TensorSpec((2,), "float64")

    assert not value_flaw(np.array([3.4e38, -3.4e38]), wide)
    assert value_flaw(np.array([0.0, -3.5e38]), wide) == "holds numbers beyond float32, which are infinite to a network"
    assert value_flaw(np.array([np.nan, 1e300]), wide) == "holds NaN or infinity"
    assert value_flaw(np.array([0.0, 3.5e38]), TensorSpec((2,), "float32")) == "holds NaN or infinity"


def test_a_choice_out_of_range_is_a_flaw() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.MultiDiscrete([2, 5])})
    good, low = {"a": 3, "b": np.array([1, 4])}, {"a": 0, "b": np.array([0, 0])}
    high = {"a": 1, "b": np.array([2, 0])}
    batch = {"a": np.array([3, 0, 1]), "b": np.array([[1, 4], [0, 0], [2, 0]])}

    one_by_one, at_once = writer_of(space).flaws([good, low, high], 3), block_writer_of(space).flaws(batch, 3)

    assert {env: flaw.key for env, flaw in one_by_one.items()} == {1: "a", 2: "b"}
    assert one_by_one == at_once


def test_only_chosen_observations_are_written() -> None:
    space = spaces.Dict({"a": POINT, "b": spaces.Tuple([spaces.Discrete(3), POINT])})
    spec = EnvSpec.of_spaces(space, spaces.Discrete(2)).for_model(ModelConfig(obs_keys=("b/1",)))
    rows = {"b/1": np.zeros((2, 2), np.float32)}

    ObsWriter(spec, space).write([{"a": GOOD_POINT, "b": (1, GOOD_POINT + number)} for number in (1, 2)], rows)

    assert rows["b/1"].tolist() == [[1, 1], [2, 2]]
