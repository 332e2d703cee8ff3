"""The actor-critic maps observations of a spec to actions and values, and learns with all of its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.layers import ACTIVATIONS
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import evaluate, observations

FIRE = DiscreteHead("fire", 3)
STEER = BoxHead("steer", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))
GAS = BoxHead("gas", (1,), "float32", (0.0,), (1.0,))
VECTOR = (("obs", TensorSpec((4,), "float32")),)
EVERYTHING = (
    ("image", TensorSpec((3, 4, 4), "uint8", layout="chw")),
    ("speed", TensorSpec((), "float32")),
    ("area", TensorSpec((), "int64")),
    ("switches", TensorSpec((5,), "int8")),
)


def config(**fields: Any) -> ModelConfig:
    sizes = {"encoder_conv_architecture": "resnet_impala", "encoder_conv_mlp_layers": (8,)}
    return ModelConfig(**{"encoder_mlp_layers": (16, 8), **sizes, **fields})


def make(
    heads: tuple[ActionHead, ...] = (FIRE, STEER), obs: tuple[tuple[str, TensorSpec], ...] = VECTOR, **fields: Any
) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(EnvSpec(obs, heads), config(**fields))


def parameters_with_gradient(model: ActorCritic) -> set[str]:
    return {name for name, p in model.named_parameters() if p.grad is not None and bool((p.grad != 0.0).any())}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("batch", [1, 6])
def test_outputs_have_the_shapes_and_dtypes_of_the_spec(share: bool, adaptive: bool, batch: int) -> None:
    model = make((STEER, FIRE, GAS), EVERYTHING, actor_critic_share_weights=share, adaptive_stddev=adaptive)
    obs = observations(EVERYTHING, batch)

    with torch.inference_mode():
        output, acted = model(obs), model.act(obs)

    assert output.dist_params.shape == (batch, 2 * 2 + 3 + 2 * 1)
    assert output.value.shape == acted.value.shape == acted.log_prob.shape == (batch,)
    assert {key: (action.dtype, tuple(action.shape)) for key, action in acted.actions.items()} == {
        "steer": (torch.float32, (batch, 2)),
        "fire": (torch.int64, (batch,)),
        "gas": (torch.float32, (batch, 1)),
    }
    assert {tensor.dtype for tensor in (*output, acted.log_prob, acted.value)} == {torch.float32}


@pytest.mark.parametrize("deterministic", [False, True])
def test_learner_evaluates_actions_as_the_actor_recorded_them(deterministic: bool) -> None:
    model = make()
    obs = observations(VECTOR, 32)
    with torch.inference_mode():
        acted = model.act(obs, deterministic=deterministic)
    recorded = {key: action.clone() for key, action in acted.actions.items()}

    evaluated = evaluate(model, obs, recorded)

    distribution = model.distribution(model(obs).dist_params)
    torch.testing.assert_close(evaluated.log_prob, acted.log_prob)
    torch.testing.assert_close(evaluated.value, acted.value)
    torch.testing.assert_close(evaluated.entropy, distribution.entropy())
    if deterministic:
        assert all(torch.equal(recorded[key], action) for key, action in distribution.mode().items())


@pytest.mark.parametrize("nonlinearity", ["elu", "relu", "tanh"])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("adaptive", [True, False])
def test_gradients_reach_every_parameter(nonlinearity: str, share: bool, adaptive: bool) -> None:
    model = make(nonlinearity=nonlinearity, actor_critic_share_weights=share, adaptive_stddev=adaptive)
    obs = observations(VECTOR, 64)

    evaluated = evaluate(model, obs, model.act(obs).actions)
    (evaluated.log_prob.mean() + 0.1 * evaluated.entropy.mean() + evaluated.value.mean()).backward()

    assert parameters_with_gradient(model) == {name for name, _ in model.named_parameters()}


def test_separate_towers_share_no_weights() -> None:
    model = make(actor_critic_share_weights=False)
    obs = observations(VECTOR, 64)

    evaluate(model, obs, model.act(obs).actions).log_prob.mean().backward()
    actor = parameters_with_gradient(model)
    model.zero_grad()
    model(obs).value.mean().backward()
    critic = parameters_with_gradient(model)

    assert not actor & critic
    assert actor | critic == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("nonlinearity", ["elu", "relu", "tanh"])
@pytest.mark.parametrize("spec", [VECTOR, EVERYTHING], ids=["vector", "everything"])
def test_observations_are_unchanged_and_read_in_the_order_of_the_spec(
    nonlinearity: str, spec: tuple[tuple[str, TensorSpec], ...]
) -> None:
    model = make(obs=spec, nonlinearity=nonlinearity)
    obs = observations(spec, 5)
    before = {path: leaf.clone() for path, leaf in obs.items()}

    with torch.inference_mode():
        first, second = model(obs), model(dict(reversed(obs.items())))

    assert all(torch.equal(obs[path], leaf) for path, leaf in before.items())
    assert torch.equal(first.dist_params, second.dist_params)
    assert torch.equal(first.value, second.value)


@pytest.mark.parametrize(
    ("name", "theirs"), [("tanh", torch.tanh), ("elu", torch.nn.functional.elu), ("relu", torch.relu)]
)
def test_activations_and_their_gradients_equal_those_of_torch(name: str, theirs: Callable[[Tensor], Tensor]) -> None:
    ours = ACTIVATIONS[name]
    x = torch.linspace(-12.0, 12.0, 10_001, requires_grad=True)

    # The multiplication replaces the layer before, since activations compute in place.
    result, expected = ours(x * 1.0), theirs(x)
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)

    torch.testing.assert_close(result, expected, atol=2e-7, rtol=2e-6)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(ours(x * 1.0), expected, atol=2e-7, rtol=2e-6)
