"""Spaces become flat, picklable facts, and a space that is not supported is named."""

from __future__ import annotations

import json
from typing import Any, get_args

import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError
from sfactory.spec import EnvSpec, TensorSpec
from sfactory.tensor_spec import describe

CHOICE = spaces.Discrete(2)
POINT = spaces.Box(-1, 1, (2,), np.float32)


def obs_of(space: spaces.Space) -> list[tuple[str, tuple[int, ...], str]]:
    return [(key, tensor.shape, tensor.dtype) for key, tensor in EnvSpec.of_spaces(space, CHOICE).obs]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), ((84, 84, 4), "uint8")),
        (spaces.Box(-1, 1, (3,), np.float64), ((3,), "float64")),
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
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Text(3)})}), CHOICE, "'a/b' is a Text; supported are"),
        (spaces.Sequence(CHOICE), CHOICE, "'obs' is a Sequence.*; supported are"),
        (POINT, spaces.Box(0, 2**40, (2,), np.int64), "action space 'action' is .*; supported are"),
        (POINT, spaces.Dict({"say": spaces.Text(3)}), "action space 'say' is .*; supported are"),
        (spaces.Dict({}), CHOICE, "is empty"),
        (POINT, spaces.Dict({}), "is empty"),
        (spaces.Box(0, 1, (0,), np.float32), CHOICE, "holds no numbers"),
        (spaces.Dict({"a/b": POINT, "a": spaces.Dict({"b": POINT})}), CHOICE, "have the path 'a/b'"),
        (POINT, spaces.Dict({"a/b": CHOICE, "a": spaces.Dict({"b": CHOICE})}), "have the path 'a/b'"),
        (POINT, spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "a/0": CHOICE}), "have the path 'a/0'"),
    ],
)
def test_an_unsupported_space_is_refused_by_its_path(
    observation: spaces.Space, action: spaces.Space, words: str
) -> None:
    with pytest.raises(EnvError, match=words):
        EnvSpec.of_spaces(observation, action).for_model(ModelConfig())


def layout_of(space: spaces.Space, *flags: str) -> str:
    spec = EnvSpec.of_spaces(space, CHOICE).for_model(ModelConfig(obs_layout=flags))
    return spec.obs[0][1].layout


@pytest.mark.parametrize(
    ("shape", "dtype", "layout"),
    [
        ((84, 84, 4), np.uint8, "hwc"),
        ((4, 84, 84), np.uint8, "chw"),
        ((72, 128, 3), np.uint8, "hwc"),
        ((84, 84), np.uint8, "hw"),
        ((21, 79), np.uint8, "flat"),  # smaller than the convolutions of the default take
        ((4, 84, 84, 3), np.uint8, "thwc"),
        ((4, 3, 84, 84), np.uint8, "tchw"),
        ((4, 64, 64, 6), np.uint8, "thwc"),  # two cameras in one image
        ((4, 6, 64, 64), np.uint8, "tchw"),
        ((4, 72, 128, 20), np.uint8, "thwc"),
        ((3, 64, 64, 64), np.uint8, "flat"),  # rather a volume
        ((7, 7, 3), np.uint8, "flat"),
        ((84, 84, 3), np.float32, "flat"),
        ((8, 8, 20), np.bool_, "flat"),
        ((21, 79), np.int16, "flat"),
    ],
)
def test_only_large_arrays_of_bytes_are_images(shape: tuple[int, ...], dtype: type, layout: str) -> None:
    assert layout_of(spaces.Box(0, 1, shape, dtype)) == layout


def test_a_flag_decides_how_an_observation_is_read() -> None:
    grid = spaces.Box(0, 10, (8, 8, 20), np.int32)

    assert layout_of(grid, "obs=hwc") == layout_of(grid, "hwc") == "hwc"
    assert layout_of(grid, "choices") == "choices"
    assert layout_of(spaces.Discrete(3), "flat") == "flat"
    for flag, words in [
        ("goal=flat", "one of the keys obs"),
        ("obs=image", "is none of flat"),
        ("hw", "needs 2: write obs=flat or obs=choices or obs=hwc or obs=chw in its place$"),
        ("image", "layout=image: "),
    ]:
        with pytest.raises(EnvError, match=words):
            layout_of(grid, flag)
    with pytest.raises(EnvError, match="finite number of values"):
        layout_of(POINT, "choices")


def test_images_that_a_network_reads_slowly_are_named() -> None:
    def said(height: int, width: int) -> str:
        spec = EnvSpec.of_spaces(spaces.Box(0, 255, (height, width, 3), np.uint8), CHOICE).for_model(ModelConfig())
        return describe("obs", spec.obs[0][1], normalized=False)

    assert "about 11 times as much as over 84x84" in said(240, 320)
    assert "84x84" not in said(120, 160)


def test_flags_choose_observations_by_key() -> None:
    space = spaces.Dict({"a": POINT, "b": spaces.Dict({"c": POINT, "d": CHOICE}), "text": spaces.Text(3)})

    def read(**flags: Any) -> list[str]:
        return [path for path, _ in EnvSpec.of_spaces(space, CHOICE).for_model(ModelConfig(**flags)).obs]

    assert read(ignore_obs_keys=("text",)) == ["a", "b/c", "b/d"]
    assert read(obs_keys=("b",)) == ["b/c", "b/d"]
    assert read(obs_keys=("a", "b"), ignore_obs_keys=("b/d",)) == ["a", "b/c"]
    for flags, words in [
        ({}, "'text' is a Text.*--ignore_obs_keys=text"),
        ({"obs_keys": ("e",)}, "--obs_keys=e: there is no such observation; there are a, b/c, b/d, text"),
        ({"obs_keys": ("a",), "ignore_obs_keys": ("a",)}, "leave no observation"),
    ]:
        with pytest.raises(EnvError, match=words):
            read(**flags)


@pytest.mark.parametrize("flags", [{}, {"continuous_distribution": "squashed"}, {"normalize_actions": False}], ids=str)
def test_a_spec_survives_the_way_over_json(flags: dict[str, Any]) -> None:
    half_open = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32))
    numbers = spaces.Box(-3, 3, (2, 2), np.int16)
    observations = spaces.Dict(
        {"z": spaces.Box(0, 255, (84, 84, 3), np.uint8), "a": spaces.Tuple([CHOICE, spaces.MultiDiscrete([2, 3])])}
    )
    actions = spaces.Tuple([half_open, spaces.Discrete(3, start=5), spaces.MultiBinary(2), numbers, POINT])
    unread = spaces.Dict({**observations.spaces, "text": spaces.Text(3)})
    made = EnvSpec.of_spaces(unread, actions, ("red", "blue"))
    spec = made.for_model(ModelConfig(ignore_obs_keys=("text",), **flags))

    for each in (made, spec):
        assert EnvSpec.of_plain(each.plain()) == each
        again = EnvSpec.of_plain(json.loads(json.dumps(each.plain())))
        assert again == each
        assert hash(again) == hash(each)
        assert [key for key, _ in again.obs] == [key for key, _ in each.obs]
    assert {type(head) for head in spec.actions} == set(get_args(ActionHead))


@pytest.mark.parametrize(
    "plain",
    [None, [], {"obs": {}}, {**EnvSpec.of_spaces(POINT, CHOICE).plain(), "actions": [{"kind": "Path"}]}],
    ids=str,
)
def test_what_is_no_plain_spec_is_refused(plain: object) -> None:
    with pytest.raises(ValueError, match="it is not the spec of an env"):
        EnvSpec.of_plain(plain)


@pytest.mark.parametrize(
    ("space", "actions", "kind"),
    [
        (spaces.Discrete(500), CHOICE, "table"),
        (spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([2, 3])]), CHOICE, "table"),
        (spaces.Dict(at=spaces.Discrete(3), speed=POINT), CHOICE, "vector"),
        (spaces.Discrete(500), POINT, "continuous"),
        (spaces.Dict(at=spaces.Discrete(3), eye=spaces.Box(0, 255, (64, 64, 3), np.uint8)), POINT, "images"),
    ],
)
def test_the_kind_of_task_follows_from_what_is_seen_and_done(
    space: spaces.Space, actions: spaces.Space, kind: str
) -> None:
    assert EnvSpec.of_spaces(space, actions).for_model(ModelConfig()).kind == kind


@pytest.mark.parametrize(
    ("space", "layout"),
    [
        (spaces.Box(0.0, 1.0, (64, 64, 3), np.float32), "hwc"),
        (spaces.Box(0.0, 1.0, (4, 16, 20), np.float64), "chw"),
        (spaces.Box(0.0, 1.0, (5, 16, 20), np.float32), ""),
        (spaces.Box(0.0, 1.0, (15, 64, 3), np.float32), ""),
        (spaces.Box(0.0, 1.0, (64, 64), np.float32), ""),
        (spaces.Box(0, 9, (64, 64, 3), np.int32), ""),
    ],
)
def test_real_numbers_with_the_shape_of_an_image_are_said_to_be_readable_as_one(space: Any, layout: str) -> None:
    ((path, leaf),) = EnvSpec.of_spaces(space, spaces.Discrete(2)).obs

    said = describe(path, leaf, normalized=False)

    assert "numbers" in said
    assert said.endswith(f"; --obs_layout=obs={layout} reads it as an image" if layout else "not normalized")
