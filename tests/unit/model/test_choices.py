"""Discrete observations reach the network as choices, at any depth of a space and whatever their start is."""

from __future__ import annotations

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch

from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.encoders import ChoiceEncoder, MLPEncoder
from sfactory.model.layers import GAINS
from sfactory.spec import EnvSpec

SMALL = ModelConfig(encoder_mlp_layers=(8,))
ACTION = spaces.Discrete(2)


def encode(space: spaces.Space, leaf: object, config: ModelConfig = SMALL) -> torch.Tensor:
    ((_, spec),) = EnvSpec.of_spaces(space, ACTION).obs
    return ChoiceEncoder(spec, config, torch.float32, read=1).forward(torch.as_tensor(np.asarray(leaf)))


def test_a_number_becomes_a_one_hot_vector_counted_from_its_start() -> None:
    assert encode(spaces.Discrete(3), [0, 2]).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert encode(spaces.Discrete(3, start=-1), [-1, 1]).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_each_element_of_an_array_has_its_own_part_of_the_vector() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[0, 5])

    assert encode(space, [[1, 5], [0, 7]]).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_many_values_are_embedded() -> None:
    config = ModelConfig(one_hot_max=4, obs_embedding_size=6)

    vector = encode(spaces.Discrete(5), [4, 4, 0], config)
    grid = encode(spaces.MultiDiscrete(np.full((2, 2), 5)), np.full((3, 2, 2), 4), config)

    assert vector.shape == (3, 6)
    assert torch.equal(vector[0], vector[1])
    assert not torch.equal(vector[0], vector[2])
    assert grid.shape == (3, 24)
    assert torch.equal(grid[:, :6], grid[:, 6:12])  # cells of a grid share their table


@pytest.mark.parametrize("values", [2**40, 2**63 - 1])
def test_more_values_than_any_memory_holds_are_refused_and_can_be_read_as_a_number(values: int) -> None:
    spec = EnvSpec.of_spaces(spaces.Discrete(values), ACTION)

    with pytest.raises(EnvError, match=rf"a choice of {values:,} values.*--obs_layout=obs=flat"):
        spec.for_model(SMALL)

    assert not spec.for_model(ModelConfig(obs_layout=("obs=flat",))).obs[0][1].is_choice
    assert spec.for_model(ModelConfig(encoder="mine:Net")).obs[0][1].is_choice


@pytest.mark.parametrize("config", [SMALL, ModelConfig(encoder_mlp_layers=(8,), one_hot_max=2)])
def test_nested_choices_beside_numbers_and_images_pass_the_network_and_its_normalization(config: ModelConfig) -> None:
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (36, 36, 3), np.uint8),
            "inner": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,), np.float32)]),
            "planes": spaces.MultiDiscrete(np.full((2, 3, 4), 5)),
        }
    )
    spec = EnvSpec.of_spaces(space, ACTION)
    model = ActorCritic(spec, config)
    space.seed(1)
    samples = [space.sample() for _ in range(4)]
    obs = {
        "image": torch.as_tensor(np.stack([sample["image"] for sample in samples])),
        "inner/0": torch.as_tensor([int(sample["inner"][0]) for sample in samples]),
        "inner/1": torch.as_tensor(np.stack([sample["inner"][1] for sample in samples])),
        "planes": torch.as_tensor(np.stack([sample["planes"] for sample in samples])),
    }

    model.observe(obs, torch.ones(4, dtype=torch.bool))
    model.forward(obs).value.sum().backward()

    assert model.obs_normalizer is not None
    assert model.obs_normalizer.keys == ("image", "inner/1")
    assert all(parameter.grad is not None for parameter in model.tower.parameters())


def test_choices_can_be_read_as_numbers() -> None:
    config = ModelConfig(encoder_mlp_layers=(8,), one_hot_max=0)
    spec = EnvSpec.of_spaces(spaces.Discrete(100), ACTION).for_model(config)
    model = ActorCritic(spec, config)

    assert model.obs_normalizer is not None
    assert model.obs_normalizer.keys == ("obs",)
    assert not spec.obs[0][1].is_choice


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"],
)
def test_numbers_of_every_dtype_pass_the_network_and_its_normalization(dtype: str, normalize: bool) -> None:
    high = 1 if dtype == "bool" else 100
    space = spaces.Box(0, high, (3,), np.dtype(dtype).type)
    spec = EnvSpec.of_spaces(space, ACTION)
    model = ActorCritic(spec, ModelConfig(encoder_mlp_layers=(8,), normalize_input=normalize))
    row = np.zeros((4, 3), spec.obs[0][1].dtype)
    np.copyto(row, np.stack([space.sample() for _ in range(4)]), casting="same_kind")
    obs = {"obs": torch.from_numpy(row)}

    model.observe(obs, torch.ones(4, dtype=torch.bool))

    assert torch.isfinite(model.forward(obs).value).all()


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_large_numbers_keep_their_differences(dtype: str) -> None:
    space = spaces.Box(0, 1e12, (1,), np.dtype(dtype).type)
    spec = EnvSpec.of_spaces(space, ACTION)
    normalizer = ActorCritic(spec, SMALL).obs_normalizer
    assert normalizer is not None
    obs = {"obs": torch.as_tensor(np.array([[1e11], [1e11 + 1], [1e11 + 2]], spec.obs[0][1].dtype))}

    normalizer.update(obs, torch.ones(3, dtype=torch.bool))

    expected = [-((3 / 2) ** 0.5), 0.0, (3 / 2) ** 0.5]
    assert normalizer.forward(obs)["obs"].flatten().tolist() == pytest.approx(expected, abs=1e-3)


def fresh_encoder(space: spaces.Space, one_hot_max: int = 1024) -> MLPEncoder:
    torch.manual_seed(0)
    config = ModelConfig(one_hot_max=one_hot_max, encoder_mlp_layers=(64,))
    encoder = ActorCritic(EnvSpec.of_spaces(space, ACTION), config).tower.encoder
    assert isinstance(encoder, MLPEncoder)
    return encoder.requires_grad_(False)


@pytest.mark.parametrize("one_hot_max", [1024, 2])
@pytest.mark.parametrize(
    ("space", "least", "most"),
    [
        (spaces.Discrete(500), 0.0, 0.1),  # those of Taxi: with 1, policies stop at 7.7 of 7.93
        (spaces.Discrete(16), 0.0, 0.25),
        (spaces.MultiDiscrete(np.full((10, 10), 5)), 0.7, 1.3),
    ],
)
def test_values_of_a_choice_alone_start_alike_and_those_of_many_as_far_apart_as_normalized_numbers(
    space: spaces.Space, least: float, most: float, one_hot_max: int
) -> None:
    encoder = fresh_encoder(space, one_hot_max)
    space.seed(1)
    obs = torch.as_tensor(np.stack([space.sample() for _ in range(200)]))

    sums = encoder.layers[0](encoder.choices[0](obs)) / GAINS[ModelConfig().nonlinearity]

    assert least <= sums.std(0).mean().item() <= most


def test_a_choice_weighs_as_much_however_the_space_is_nested_and_more_beside_numbers() -> None:
    nested = spaces.Dict({str(number): spaces.Discrete(9) for number in range(5)})
    beside = spaces.Dict({"a": spaces.Box(-1, 1, (4,)), "b": spaces.Discrete(9)})

    spaces_of_encoders = (nested, spaces.MultiDiscrete([9] * 5), beside)
    apart, together, mixed = (next(fresh_encoder(space).layers.parameters()) for space in spaces_of_encoders)
    weights = mixed.norm(dim=0)

    assert torch.equal(apart, together)
    torch.testing.assert_close(weights[4:], (5**0.5 * weights[0]).expand(9))


def test_each_table_starts_by_the_number_of_its_own_values() -> None:
    (choice,) = fresh_encoder(spaces.MultiDiscrete([2, 200]), one_hot_max=100).choices
    assert isinstance(choice, ChoiceEncoder)
    assert choice.table is not None

    weights = choice.table.weight

    assert weights[:2].std().item() > 0.7
    assert weights[2:].std().item() == pytest.approx(0.1, rel=0.1)
