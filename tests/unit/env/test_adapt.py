"""Observations of any structure land in their rows bit by bit, and actions reach the env as its space wants them."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.env.conversion import BadObservation, ObsWriter, action_reader
from sfactory.spec import EnvSpec

INT32: Any = np.int32  # which MultiDiscrete takes, though its annotations do not say so
POINT = spaces.Box(-1, 1, (2,), np.float32)
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
ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "discrete with start": spaces.Discrete(4, start=-2),
    "multi-discrete": spaces.MultiDiscrete([2, 3, 4]),
    "multi-discrete with start": spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "multi-discrete matrix": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "box": spaces.Box(-1, 2, (3,), np.float32),
    "box in double precision": spaces.Box(-1, 2, (3,), np.float64),
    "box matrix": spaces.Box(-1, 2, (2, 3), np.float32),
    "unbounded box": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "tuple": spaces.Tuple([spaces.Discrete(3, start=1), POINT]),
    "dict": spaces.Dict({"jump": spaces.Discrete(2), "arm": POINT}),
    "nested": spaces.Dict({"a": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Dict({"b": POINT})])}),
}


def spec_of(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> EnvSpec:
    return EnvSpec.of_spaces(observation, action or spaces.Discrete(2))


def at_path(obs: Any, key: str) -> Any:
    """The leaf of ``obs`` that the key names."""
    for part in [] if key == "obs" else key.split("/"):
        obs = obs[int(part)] if isinstance(obs, tuple) else obs[part]
    return obs


def action_rows(spec: EnvSpec, count: int, seed: int) -> dict[str, Any]:
    """Rows as a policy writes them: indices in range, and reals far beyond any bound."""
    rng = np.random.default_rng(seed)
    return {
        head.key: rng.integers(0, head.n, count)
        if hasattr(head, "n")
        else rng.normal(0, 3, (count, head.size)).astype(np.float32)
        for head in spec.actions
    }


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", OBSERVATION_SPACES)
def test_every_leaf_of_every_observation_is_written_to_its_row(name: str, count: int) -> None:
    space = OBSERVATION_SPACES[name]
    space.seed(3)
    spec, observations = spec_of(space), [space.sample() for _ in range(count)]
    rows = {key: np.zeros((count, *tensor.shape), tensor.dtype) for key, tensor in spec.obs}
    writer = ObsWriter(spec, space)

    writer.write(observations, rows)

    for env, obs in enumerate(observations):
        writer.check(obs, "here")
        for key, tensor in spec.obs:
            assert np.array_equal(rows[key][env], np.asarray(at_path(obs, key)).astype(tensor.dtype)), key


def test_rows_may_be_a_slice_of_shared_memory() -> None:
    block = np.zeros((3, 2, 2), np.float32)

    ObsWriter(spec_of(POINT), POINT).write([np.ones(2, np.float32), np.full(2, 2, np.float32)], {"obs": block[1]})

    assert block.tolist() == [[[0, 0], [0, 0]], [[1, 1], [2, 2]], [[0, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (POINT, np.zeros(3, np.float32), r"'obs' has shape \(3,\) and dtype float32.*promises \(2,\) and float32"),
        (POINT, np.zeros((1, 2), np.float32), r"'obs' has shape \(1, 2\)"),
        (POINT, 0.5, r"'obs' has shape \(\)"),
        (OBSERVATION_SPACES["image"], np.zeros((5, 4, 3)), "dtype float64.*promises .*uint8"),
        (OBSERVATION_SPACES["number"], 1.5, "'obs' has .* dtype float64.*int64"),
        (
            OBSERVATION_SPACES["nested"],
            {"a": ({"b": np.zeros(5, np.float32)}, 1), "c": np.zeros(2, np.float32)},
            r"'a/0/b' has shape \(5,\)",
        ),
        (OBSERVATION_SPACES["dict"], {"image": np.zeros((2, 2), np.uint8)}, "'number' is missing or no array"),
        (OBSERVATION_SPACES["tuple"], (np.zeros(2, np.float32),), "'1' is missing or no array"),
        (OBSERVATION_SPACES["dict"], np.zeros(2), "'image' is missing or no array"),
        (OBSERVATION_SPACES["dict"], None, "'image' is missing or no array"),
        (POINT, [[1.0], [1.0, 2.0]], "'obs' is missing or no array"),
        (POINT, None, "'obs' has shape"),
    ],
)
def test_an_observation_that_breaks_its_promise_is_refused_by_name(
    space: spaces.Space[Any], obs: Any, words: str
) -> None:
    with pytest.raises(BadObservation, match=f"^env 3, reset: .*{words}"):
        ObsWriter(spec_of(space), space).check(obs, "env 3, reset")


def test_flaws_are_told_by_env_with_the_first_leaf_that_has_one() -> None:
    space = OBSERVATION_SPACES["nested"]
    good = {"a": ({"b": np.zeros(2, np.float32)}, 1), "c": np.zeros(2, np.float32)}
    infinite = {**good, "a": ({"b": np.array([0.0, -np.inf], np.float32)}, 1)}
    both = {"a": good["a"], "c": np.array([np.nan, 0.0, 0.0], np.float32)}
    too_large = {**good, "c": np.array([0.0, 1e39])}
    missing = {"c": np.zeros(2, np.float32)}

    flaws = ObsWriter(spec_of(space), space).flaws([good, infinite, both, too_large, missing], 5)

    assert {env: flaw.key for env, flaw in flaws.items()} == {1: "a/0/b", 2: "c", 3: "c", 4: "a/0/b"}
    assert flaws[1].text == flaws[3].text == "holds NaN or infinity"
    assert flaws[2].text.startswith("has shape (3,)")
    assert flaws[4].text.startswith("is missing or no array")


def test_numbers_of_another_kind_are_refused_and_not_cut() -> None:
    space = OBSERVATION_SPACES["number"]
    writer = ObsWriter(spec_of(space), space)
    rows = {"obs": np.zeros(2, np.int64)}

    with pytest.raises(BadObservation, match=r"env 1 of the split: observation 'obs' has .* dtype float64"):
        writer.write([3, 1.5], rows)


@pytest.mark.filterwarnings("ignore:.*Getting the length of a multi-dimensional MultiDiscrete")
@pytest.mark.parametrize("name", ACTION_SPACES)
def test_every_action_is_in_the_envs_own_space(name: str) -> None:
    space = ACTION_SPACES[name]
    spec = spec_of(POINT, space)

    actions = action_reader(space)(action_rows(spec, count=20, seed=1))

    assert len(actions) == 20
    assert all(space.contains(action) for action in actions), actions


def test_indices_are_shifted_by_the_start_of_their_space() -> None:
    rows = {"action": np.array([0, 3, 1])}

    assert action_reader(spaces.Discrete(4))(rows) == [0, 3, 1]
    assert action_reader(spaces.Discrete(4, start=-2))(rows) == [-2, 1, -1]


def test_multi_discrete_actions_keep_their_shape_dtype_and_starts() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=INT32, start=np.array([[0, 10], [20, 30]]))
    rows = {f"action/{index}": np.array([0, index]) for index in range(4)}

    first, second = action_reader(space)(rows)

    assert (first.dtype, first.tolist()) == (np.int32, [[0, 10], [20, 30]])
    assert second.tolist() == [[0, 11], [22, 33]]


def test_reals_are_clipped_to_each_bound_of_their_own() -> None:
    space = spaces.Box(np.array([-1, 0], np.float64), np.array([1, 0.5], np.float64), dtype=np.float64)
    rows = {"action": np.array([[-3, -3], [0.25, 0.25], [3, 3]], np.float32)}

    actions = action_reader(space)(rows)

    assert [action.tolist() for action in actions] == [[-1, 0], [0.25, 0.25], [1, 0.5]]
    assert {action.dtype for action in actions} == {np.dtype(np.float64)}
    assert rows["action"][0].tolist() == [-3, -3], "the stored action must stay as the policy chose it"


def test_containers_are_put_together_again() -> None:
    space = ACTION_SPACES["nested"]
    rows = {
        "a/0/0": np.array([1, 0]),
        "a/0/1": np.array([2, 1]),
        "a/1/b": np.array([[0.5, -0.5], [9, -9]], np.float32),
    }

    first, second = action_reader(space)(rows)

    assert first["a"][0].tolist() == [1, 2]
    assert first["a"][1]["b"].tolist() == [0.5, -0.5]
    assert second["a"][0].tolist() == [0, 1]
    assert second["a"][1]["b"].tolist() == [1, -1]
