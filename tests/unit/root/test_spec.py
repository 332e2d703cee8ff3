"""Spaces become flat, picklable facts, and a space that is not supported is named."""

from __future__ import annotations

import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.errors import EnvError
from sfactory.spec import BoxHead, DiscreteHead, EnvSpec, TensorSpec

CHOICE = spaces.Discrete(2)
POINT = spaces.Box(-1, 1, (2,), np.float32)


def obs_of(space: spaces.Space) -> list[tuple[str, tuple[int, ...], str]]:
    return [(key, tensor.shape, tensor.dtype) for key, tensor in EnvSpec.of_spaces(space, CHOICE).obs]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), ((84, 84, 4), "uint8")),
        (spaces.Box(-1, 1, (3,), np.float64), ((3,), "float32")),
        (spaces.Box(-1, 1, (), np.float32), ((), "float32")),
        (spaces.Discrete(5), ((), "int64")),
        (spaces.MultiDiscrete([2, 3]), ((2,), "int64")),
        (spaces.MultiBinary(4), ((4,), "int8")),
    ],
)
def test_a_single_space_is_stored_under_obs(space: spaces.Space, expected: tuple[tuple[int, ...], str]) -> None:
    assert obs_of(space) == [("obs", *expected)]


def test_nested_observations_are_flat_and_keyed_by_path() -> None:
    image = spaces.Box(0, 255, (4, 4), np.uint8)
    space = spaces.Dict(
        {"image": image, "goal": spaces.Dict({"position": POINT}), "pair": spaces.Tuple([CHOICE, POINT])}
    )

    assert sorted(obs_of(space)) == [
        ("goal/position", (2,), "float32"),
        ("image", (4, 4), "uint8"),
        ("pair/0", (), "int64"),
        ("pair/1", (2,), "float32"),
    ]


def test_actions_become_heads_in_order() -> None:
    arm = spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32))
    pair = spaces.MultiDiscrete([2, 4], start=[0, 10])
    space = spaces.Tuple([spaces.Discrete(3, start=5), pair, spaces.Dict({"arm": arm})])

    heads = EnvSpec.of_spaces(POINT, space).actions

    assert heads == (
        *(DiscreteHead("0", 3, 5), DiscreteHead("1/0", 2, 0), DiscreteHead("1/1", 4, 10)),
        BoxHead("2/arm", (2,), "float32", (-1.0, -2.0), (1.0, 2.0)),
    )
    assert [head.tensor for head in heads] == [*[TensorSpec((), "int64")] * 3, TensorSpec((2,), "float32")]
    assert [head.tensor.nbytes for head in heads] == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Text(3)})}), CHOICE, "'a/b' is a Text"),
        (spaces.Sequence(CHOICE), CHOICE, "'obs' is a Sequence"),
        (POINT, spaces.Box(0, 3, (2,), np.int32), "action space 'action'"),
        (POINT, spaces.Dict({"say": spaces.Text(3)}), "action space 'say'"),
    ],
)
def test_a_space_that_is_not_supported_is_named_by_path(
    observation: spaces.Space, action: spaces.Space, words: str
) -> None:
    with pytest.raises(EnvError, match="supported are") as refused:
        EnvSpec.of_spaces(observation, action)

    assert words in str(refused.value)
