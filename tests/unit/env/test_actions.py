"""Actions fit the env's space, in the unit that the policy acts in.

Vector envs: a batch is converted exactly as the actions of its envs one by one would be.
"""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, iterate

from sfactory.action_heads import ActionHead
from sfactory.config.schema import ModelConfig
from sfactory.env.actions import action_reader, block_reader
from sfactory.spec import EnvSpec

N = 3
INT32: Any = np.int32  # which MultiDiscrete takes, though its annotations do not say so
POINT = spaces.Box(-1, 1, (2,), np.float32)
CLIPPED = ModelConfig(normalize_actions=False)
SCALED = ModelConfig()
SQUASHED = ModelConfig(continuous_distribution="squashed")
ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "discrete with start": spaces.Discrete(4, start=-2),
    "multi-discrete": spaces.MultiDiscrete([2, 3, 4]),
    "multi-discrete with start": spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "multi-discrete matrix": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "box": spaces.Box(-1, 2, (3,), np.float32),
    "box in double precision": spaces.Box(-1, 2, (3,), np.float64),
    "box matrix": spaces.Box(-1, 2, (2, 3), np.float32),
    "bits": spaces.MultiBinary(3),
    "bits matrix": spaces.MultiBinary([2, 2]),
    "box of integers": spaces.Box(-2, 5, (2,), np.int32),
    "box of bytes": spaces.Box(np.array([0, 10], np.uint8), np.array([3, 255], np.uint8), dtype=np.uint8),
    "wide box": spaces.Box(0, 1000, (1,), np.float32),
    "far box": spaces.Box(1000, 1010, (1,), np.float32),
    "box of two units": spaces.Box(np.array([0, -50], np.float32), np.array([1, 10], np.float32)),
    "half-infinite box": spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 3], np.float32)),
    "unbounded box": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "tuple": spaces.Tuple([spaces.Discrete(3, start=1), POINT]),
    "dict": spaces.Dict({"jump": spaces.Discrete(2), "arm": POINT}),
    "nested": spaces.Dict({"a": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Dict({"b": POINT})])}),
}


def heads_of(space: spaces.Space[Any], config: ModelConfig = CLIPPED) -> tuple[ActionHead, ...]:
    return EnvSpec.of_spaces(POINT, space).for_model(config).actions


@pytest.mark.filterwarnings("ignore:.*Getting the length of a multi-dimensional MultiDiscrete")
@pytest.mark.parametrize("config", [CLIPPED, SCALED, SQUASHED], ids=["clipped", "scaled", "squashed"])
@pytest.mark.parametrize("name", ACTION_SPACES)
def test_every_action_is_in_the_envs_space_and_batches_hold_the_same_actions(name: str, config: ModelConfig) -> None:
    space, rng = ACTION_SPACES[name], np.random.default_rng(1)
    # As a policy writes them: indices in range, and reals far beyond any bound.
    rows = {
        head.key: rng.integers(0, head.n, 20)
        if hasattr(head, "n")
        else rng.normal(0, 3, (20, head.size)).astype(np.float32)
        for head in heads_of(space, config)
    }

    heads = heads_of(space, config)
    actions, batch = action_reader(space, heads)(rows), block_reader(space, heads)(rows)

    assert len(actions) == 20
    assert all(space.contains(action) for action in actions), actions
    batched = batch_space(space, 20)
    assert batch in batched
    if name != "multi-discrete matrix":  # which gymnasium cannot flatten
        for one, alone in zip(iterate(batched, batch), actions, strict=True):
            np.testing.assert_array_equal(spaces.flatten(space, one), spaces.flatten(space, alone))


def test_a_vector_env_may_keep_its_actions() -> None:
    rows = {"action": np.arange(N)}

    batch = block_reader(spaces.Discrete(N), ())(rows)
    rows["action"][:] = 0

    assert batch.tolist() == [0, 1, 2]


def test_indices_are_shifted_by_the_start_of_their_space() -> None:
    matrix = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=INT32, start=np.array([[0, 10], [20, 30]]))

    actions = action_reader(matrix, ())({f"action/{index}": np.array([0, index]) for index in range(4)})

    assert action_reader(spaces.Discrete(4, start=-2), ())({"action": np.array([0, 3, 1])}) == [-2, 1, -1]
    assert [action.tolist() for action in actions] == [[[0, 10], [20, 30]], [[0, 11], [22, 33]]]
    assert actions[0].dtype == np.int32


def test_reals_are_clipped_to_their_bounds_but_not_in_the_rows() -> None:
    space = spaces.Box(np.array([-1, 0], np.float64), np.array([1, 0.5], np.float64), dtype=np.float64)
    rows = {"action": np.array([[-3, -3], [0.25, 0.25], [3, 3]], np.float32)}

    actions = action_reader(space, heads_of(space))(rows)

    assert [action.tolist() for action in actions] == [[-1, 0], [0.25, 0.25], [1, 0.5]]
    assert {action.dtype for action in actions} == {np.dtype(np.float64)}
    assert rows["action"][0].tolist() == [-3, -3]


def test_actions_of_containers_are_nested_as_the_space() -> None:
    rows = {
        "a/0/0": np.array([1, 0]),
        "a/0/1": np.array([2, 1]),
        "a/1/b": np.array([[0.5, -0.5], [9, -9]], np.float32),
    }

    first, second = action_reader(ACTION_SPACES["nested"], heads_of(ACTION_SPACES["nested"]))(rows)

    assert (first["a"][0].tolist(), first["a"][1]["b"].tolist()) == ([1, 2], [0.5, -0.5])
    assert (second["a"][0].tolist(), second["a"][1]["b"].tolist()) == ([0, 1], [1, -1])


def test_containers_without_actions_stand_beside_others() -> None:
    space = spaces.Dict({"jump": spaces.Discrete(2), "no": spaces.Dict(), "none": spaces.Tuple([])})

    actions = action_reader(space, heads_of(space))({"jump": np.array([0, 1])})

    assert actions == [{"jump": jump, "no": {}, "none": ()} for jump in (0, 1)]


def test_the_unit_interval_of_the_policy_becomes_the_bounds_of_each_dimension() -> None:
    low, high = np.array([0, -50, 0], np.float32), np.array([1000, 10, np.inf], np.float32)
    space = spaces.Box(low, high)
    rows = {"action": np.array([[-1, 0, 0], [1, 0.5, 7], [-9, 9, -9]], np.float32)}

    scaled = [action.tolist() for action in action_reader(space, heads_of(space, SCALED))(rows)]
    squashed = [action.tolist() for action in action_reader(space, heads_of(space, SQUASHED))(rows)]

    assert scaled == [[0, -20, 0], [1000, -5, 7], [0, 10, 0]]
    assert squashed[0] == pytest.approx([500 - 500 * np.tanh(1), -20, 0], rel=1e-5)
    assert squashed[1][1:] == pytest.approx([-20 + 30 * np.tanh(0.5), 7], rel=1e-5)


@pytest.mark.parametrize("bound", [np.inf, np.finfo(np.float32).max])
def test_bounds_that_stand_for_infinity_leave_actions_as_they_are(bound: float) -> None:
    space = spaces.Box(-bound, bound, (1,), np.float32)

    (action,) = action_reader(space, heads_of(space, SCALED))({"action": np.array([[5.0]], np.float32)})

    assert action.tolist() == [5.0]


def test_discrete_actions_are_numpy_integers_as_a_space_samples_them() -> None:
    (action,) = action_reader(spaces.Discrete(4, start=1), ())({"action": np.array([2])})

    assert (type(action), action.item()) == (np.int64, 3)
