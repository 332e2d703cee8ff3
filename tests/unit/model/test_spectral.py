"""With --use_spectral_norm, MLP layers have a largest singular value of 1, in actors and learner alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from sfactory.action_heads import DiscreteHead
from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.model.layers import SpectralLinear
from sfactory.model.precision import ActingTwin, Amp
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import TINY, VECTOR, model_of, random_batch, record, tiny_config, trainer_for

DEEP = dataclasses.replace(
    TINY, encoder_mlp_layers=(32, 16), decoder_mlp_layers=(12,), use_spectral_norm=True, use_rnn=False
)
TRUE, FALSE = torch.tensor(True), torch.tensor(False)


def deep_model(dtype: torch.dtype = torch.float32, **fields: Any) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(VECTOR, dataclasses.replace(DEEP, **fields), dtype)


def spectral_layers(model: nn.Module) -> dict[str, SpectralLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, SpectralLinear)}


def largest(weight: Tensor) -> float:
    return float(np.linalg.svd(weight.detach().numpy().astype(np.float64), compute_uv=False)[0])


def trained(updates: int, **fields: Any) -> Trainer:
    model = deep_model(**fields)
    trainer = trainer_for(model, AlgoConfig(), OptimConfig(learning_rate=0.01), LearnerConfig())
    for update in range(updates):
        trainer.train(random_batch(model, seed=update))
    assert (trainer.train_step, trainer.stats.skipped) == (updates, 0)
    return trainer


@pytest.mark.parametrize("initialization", ["orthogonal", "xavier_uniform", "torch_default"])
@pytest.mark.parametrize("updates", [0, 60])
def test_largest_singular_value_of_every_mlp_layer_is_1(updates: int, initialization: str) -> None:
    layers = spectral_layers(trained(updates, policy_initialization=initialization).model)

    assert list(layers) == ["tower.encoder.layers.0", "tower.encoder.layers.1", "tower.decoder.0"]
    for layer in layers.values():
        assert largest(layer.multiplied_with()) == pytest.approx(1.0, abs=0.03)
    assert not spectral_layers(deep_model(use_spectral_norm=False))


def test_only_linear_layers_after_convolutions_are_normalized() -> None:
    spec = EnvSpec((("obs", TensorSpec((4, 36, 36), "uint8", layout="chw")),), (DiscreteHead("action", 3),))
    config = ModelConfig(encoder_conv_mlp_layers=(16, 8), use_rnn=True, rnn_size=6, use_spectral_norm=True)

    assert list(spectral_layers(ActorCritic(spec, config))) == ["tower.encoder.layers.0", "tower.encoder.layers.1"]


def test_weight_and_gradient_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    layer, x = SpectralLinear(7, 5, torch.float32), torch.randn(4, 7)
    layer.settle()
    theirs = nn.Linear(7, 5)
    theirs.load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    spectral_norm(theirs).eval()
    buffers, parameters = dict(theirs.named_buffers()), dict(theirs.named_parameters())
    buffers["parametrizations.weight.0._u"].copy_(layer.left)
    buffers["parametrizations.weight.0._v"].copy_(layer.right)

    for module in (layer, theirs):
        module(x).square().sum().backward()

    torch.testing.assert_close(layer.multiplied_with(), theirs.weight)
    torch.testing.assert_close(layer.weight.grad, parameters["parametrizations.weight.original"].grad)
    torch.testing.assert_close(layer.bias.grad, theirs.bias.grad)


def test_vectors_follow_only_updates_that_were_taken() -> None:
    torch.manual_seed(0)
    layer = SpectralLinear(7, 5, torch.float32)
    layer.settle()
    before = layer.left.clone(), layer.right.clone()
    with torch.no_grad():
        layer.weight.add_(torch.randn(5, 7))

    layer.follow(FALSE)
    assert torch.equal(layer.left, before[0])
    assert torch.equal(layer.right, before[1])

    error = abs(largest(layer.multiplied_with()) - 1.0)
    for _ in range(30):
        layer.follow(TRUE)
    assert abs(largest(layer.multiplied_with()) - 1.0) < min(error, 1e-3)
    assert [float(vector.norm()) for vector in (layer.left, layer.right)] == pytest.approx([1.0, 1.0])


def test_layer_of_zeros_returns_its_bias() -> None:
    layer = SpectralLinear(3, 2, torch.float32)
    with torch.no_grad():
        layer.weight.zero_()
    layer.settle()
    layer.follow(TRUE)

    assert torch.equal(layer(torch.ones(4, 3)), layer.bias.expand(4, 2))


@pytest.mark.parametrize("use_rnn", [True, False])
def test_first_update_on_steps_of_the_same_weights_has_ratios_of_1(use_rnn: bool) -> None:
    fields: dict[str, Any] = {"use_spectral_norm": True, "use_rnn": use_rnn, "encoder_mlp_layers": (16, 8)}
    model = model_of(**fields)
    trainer = trainer_for(model)
    trainer.train(record(model, tiny_config(**fields)))
    trainer.stats.clear()

    trainer.train(record(model, tiny_config(**fields), seed=2))  # after vectors have followed an update

    assert trainer.statistics()["kl"] < 1e-9


@pytest.mark.parametrize(("amp", "tolerance"), [("off", 1e-6), ("bf16", 5e-2), ("fp16", 5e-3)])
def test_policy_acts_with_the_published_weights(amp: Amp, tolerance: float) -> None:
    model = deep_model()
    flat = FlatState(model)
    trainer = trainer_for(model, AlgoConfig(), OptimConfig(learning_rate=0.01), LearnerConfig())
    weights = SharedWeights(flat.block.numel())
    policy = ActingPolicy(VECTOR, dataclasses.replace(DEEP, amp=amp), weights, torch.device("cpu"))
    obs, no_memory = {"obs": torch.randn(6, 3)}, torch.zeros(6, 0)
    values = []

    for version in (1, 2):
        trainer.train(random_batch(model, seed=version))
        weights.publish(flat.to_host(), version)
        policy.refresh()
        acted = policy.act(obs, no_memory)
        assert torch.equal(policy.act(obs, no_memory).value, acted.value)
        torch.testing.assert_close(acted.value, model(obs).value, rtol=tolerance, atol=tolerance)
        values.append(acted.value)

    assert not torch.equal(*values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_twin_stores_divided_weights(dtype: torch.dtype) -> None:
    model = deep_model(dtype)
    with torch.no_grad():
        for layer in spectral_layers(model).values():
            layer.weight.mul_(3.0)

    twin = ActingTwin(model).model

    for name, layer in spectral_layers(twin).items():
        assert layer.multiplied_with() is layer.weight
        assert layer.weight.dtype is layer.compute_dtype
        assert largest(layer.weight.float()) == pytest.approx(1.0, abs=0.03)
        assert torch.equal(layer.weight, spectral_layers(model)[name].multiplied_with().to(layer.compute_dtype))
