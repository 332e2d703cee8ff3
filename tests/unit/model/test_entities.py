"""A set of entities is encoded alike in any order, and those that are absent have no influence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.action_heads import DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.encoders import MLPEncoder, MultiEncoder
from sfactory.model.entities import EntityEncoder
from sfactory.model.normalizer import RunningNormalizer
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import tiny_config

CONFIG = tiny_config(
    obs_layout=("units=entities",), encoder_entity_size=12, encoder_entity_heads=3, encoder_entity_layers=2
)


def spec_of(count: int, *others: tuple[str, TensorSpec]) -> EnvSpec:
    return EnvSpec((("units", TensorSpec((count, 3), "float32")), *others), (DiscreteHead("action", 4),))


def with_mask(count: int) -> EnvSpec:
    return spec_of(count, ("units_mask", TensorSpec((count,), "int8")))


def model_of(spec: EnvSpec, **fields: Any) -> ActorCritic:
    torch.manual_seed(0)
    config = ModelConfig(**{**vars(CONFIG), **fields})
    model = ActorCritic(spec.for_model(config), config)
    if model.obs_normalizer is not None:
        model.observe({"units": 5.0 + 2.0 * torch.randn(100, *dict(spec.obs)["units"].shape)}, torch.ones(100) > 0)
    return model


def features(model: ActorCritic, **obs: Tensor) -> Tensor:
    seen = obs if model.obs_normalizer is None else model.obs_normalizer.forward(obs)
    return model.tower.step(seen, torch.zeros(len(obs["units"]), 0))[0]


@pytest.mark.parametrize("normalize", [False, True])
def test_order_and_absent_entities_have_no_influence(normalize: bool) -> None:
    model = model_of(spec_of(6), normalize_input=normalize)
    units = torch.randn(8, 6, 3)
    units[:, 4:] = 0.0  # absent
    order = torch.tensor([5, 2, 0, 4, 3, 1])

    result = features(model, units=units)

    torch.testing.assert_close(features(model, units=units[:, order]), result, atol=1e-5, rtol=1e-5)
    shorter = model_of(spec_of(4), normalize_input=normalize)
    shorter.load_state_dict(model.state_dict())  # the same weights, and statistics, for any number of entities
    torch.testing.assert_close(features(shorter, units=units[:, :4]), result, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(features(model, units=units * 1.5), result, atol=1e-3)


def test_numbers_that_are_not_normalized_are_scaled() -> None:
    plain, scaled = (model_of(spec_of(4), **flags) for flags in ({}, {"obs_subtract_mean": 1.0, "obs_scale": 2.0}))
    units = torch.randn(8, 4, 3)

    torch.testing.assert_close(features(scaled, units=2.0 * units + 1.0), features(plain, units=units))


@pytest.mark.parametrize("normalize", [False, True])
def test_a_mask_says_which_entities_there_are_whatever_the_others_hold(normalize: bool) -> None:
    model = model_of(with_mask(6), normalize_input=normalize)
    units, mask = torch.randn(8, 6, 3), torch.ones(8, 6, dtype=torch.int8)
    units[:, 0] = 0.0  # present, though all of its numbers are 0
    mask[:, 4:] = 0

    result = features(model, units=units, units_mask=mask)
    units[:, 4:] = 1e6 * torch.randn(8, 2, 3)
    other = features(model, units=units, units_mask=mask)
    mask[:, 0] = 0
    without = features(model, units=units, units_mask=mask)

    torch.testing.assert_close(other, result)
    assert not torch.allclose(without, result, atol=1e-3)


def test_without_any_entity_features_are_zero_and_gradients_finite() -> None:
    model = model_of(spec_of(4))
    units = torch.randn(3, 4, 3)
    units[1] = 0.0

    result = features(model, units=units)
    result.square().sum().backward()

    assert not result[1].any()
    assert all(
        bool(torch.isfinite(weight.grad).all()) for weight in model.tower.parameters() if weight.grad is not None
    )


def test_statistics_are_of_the_present_entities_and_shared_by_all_places() -> None:
    model = model_of(with_mask(4), normalize_input=True)
    assert model.obs_normalizer is not None
    normalizer = model.obs_normalizer.normalizers[0]
    assert isinstance(normalizer, RunningNormalizer)
    normalizer.count.zero_()
    units, mask = torch.randn(50, 7, 4, 3), torch.rand(50, 7, 4) < 0.5
    valid = torch.rand(50, 7) < 0.8

    model.observe({"units": units, "units_mask": mask}, valid)

    counted = units[mask & valid.unsqueeze(-1)].double()
    torch.testing.assert_close(normalizer.mean, counted.mean(0))
    torch.testing.assert_close(normalizer.var, counted.var(0, unbiased=False))


def test_other_observations_stand_beside_a_set_and_each_may_have_a_network_of_its_own() -> None:
    others = ("speed", TensorSpec((2,), "float32")), ("place", TensorSpec((3,), "float32"))
    for per_key, parts in ((False, [EntityEncoder, MLPEncoder]), (True, [EntityEncoder, MLPEncoder, MLPEncoder])):
        encoder = model_of(spec_of(4, *others), encoder_per_key=per_key).tower.encoder
        assert isinstance(encoder, MultiEncoder)
        assert [type(part) for part in encoder.parts] == parts
        assert encoder.out_size == 12 + 8 * (len(parts) - 1)


@pytest.mark.parametrize(
    ("spec", "layouts", "words"),
    [
        (spec_of(4), ("units=entity",), "'entity' is none of flat, choices, mask, entities, hw"),
        (spec_of(4), ("units=present",), "'present' is none of"),
        (spec_of(4, ("x", TensorSpec((3,), "float32"))), ("x=entities",), "has 1 dimensions, and this layout needs 2"),
        (spec_of(4, ("units_mask", TensorSpec((5,), "int8"))), ("units=entities",), r"must have the shape \(4,\)"),
        (with_mask(4), ("units=entities", "units_mask=flat"), "no layout of its own"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(spec: EnvSpec, layouts: tuple[str, ...], words: str) -> None:
    with pytest.raises(EnvError, match=words):
        spec.for_model(ModelConfig(obs_layout=layouts))
