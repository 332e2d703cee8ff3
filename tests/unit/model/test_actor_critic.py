"""The actor-critic maps any observations of a spec to actions and values of that spec, and learns with all it has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import ModelConfig
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.encoders import MLPEncoder
from sfactory.model.layers import elu_, relu_, tanh_
from sfactory.spec import ActionHead, BoxHead, DiscreteHead, EnvSpec, TensorSpec
from tests.support.parts import evaluate

FIRE = DiscreteHead("fire", 3)
STEER = BoxHead("steer", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))
GAS = BoxHead("gas", (1,), "float32", (0.0,), (1.0,))
SIZES = {"encoder_mlp_layers": (16, 8), "encoder_conv_architecture": "resnet_impala", "encoder_conv_mlp_layers": (8,)}
SMALL = ModelConfig(**SIZES)  # type: ignore[arg-type]
VECTOR = (("obs", TensorSpec((4,), "float32")),)
EVERYTHING = (
    ("image", TensorSpec((3, 4, 4), "uint8")),
    ("speed", TensorSpec((), "float32")),
    ("room", TensorSpec((), "int64")),
    ("switches", TensorSpec((5,), "int8")),
)
NUM_EVERYTHING = 48 + 1 + 1 + 5


def observations(obs: tuple[tuple[str, TensorSpec], ...], batch: int) -> dict[str, Tensor]:
    return {
        path: torch.randn(batch, *spec.shape)
        if spec.dtype == "float32"
        else torch.randint(0, 100, (batch, *spec.shape)).to(getattr(torch, spec.dtype))
        for path, spec in obs
    }


def make(
    heads: tuple[ActionHead, ...] = (FIRE,),
    obs: tuple[tuple[str, TensorSpec], ...] = VECTOR,
    config: ModelConfig = SMALL,
) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(EnvSpec(obs, heads), config)


def config(**fields: object) -> ModelConfig:
    return ModelConfig(**{**SIZES, **fields})  # type: ignore[arg-type]


def parameters_with_gradient(model: ActorCritic) -> set[str]:
    return {name for name, p in model.named_parameters() if p.grad is not None and bool((p.grad != 0.0).any())}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("batch", [1, 6])
def test_mixed_heads_and_observations_give_actions_and_values_of_the_spec(
    share: bool, adaptive: bool, batch: int
) -> None:
    heads = (STEER, FIRE, GAS)
    model = make(heads, EVERYTHING, config(actor_critic_share_weights=share, adaptive_stddev=adaptive))
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


def test_learner_evaluates_to_what_the_actor_recorded() -> None:
    model = make((FIRE, STEER))
    obs = observations(VECTOR, 32)
    with torch.inference_mode():
        acted = model.act(obs)
    recorded = {key: action.clone() for key, action in acted.actions.items()}

    evaluated = evaluate(model, obs, recorded)

    torch.testing.assert_close(evaluated.log_prob, acted.log_prob)
    torch.testing.assert_close(evaluated.value, acted.value)
    torch.testing.assert_close(evaluated.entropy, model.distribution(model(obs).dist_params).entropy())
    torch.testing.assert_close(model(obs).value, acted.value)


def test_deterministic_action_is_the_mode() -> None:
    model = make((FIRE, STEER))
    obs = observations(VECTOR, 8)

    first, second = model.act(obs, deterministic=True), model.act(obs, deterministic=True)

    mode = model.distribution(model(obs).dist_params).mode()
    for key, action in mode.items():
        assert torch.equal(first.actions[key], action)
        assert torch.equal(second.actions[key], action)
    torch.testing.assert_close(first.log_prob, evaluate(model, obs, mode).log_prob)


@pytest.mark.parametrize("nonlinearity", ["elu", "relu", "tanh"])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("adaptive", [True, False])
def test_gradients_reach_every_parameter(nonlinearity: str, share: bool, adaptive: bool) -> None:
    heads = (FIRE, STEER)
    settings = config(nonlinearity=nonlinearity, actor_critic_share_weights=share, adaptive_stddev=adaptive)
    model = make(heads, config=settings)
    obs = observations(VECTOR, 64)

    evaluated = evaluate(model, obs, model.act(obs).actions)
    (evaluated.log_prob.mean() + 0.1 * evaluated.entropy.mean() + evaluated.value.mean()).backward()

    assert parameters_with_gradient(model) == {name for name, _ in model.named_parameters()}


def test_separate_towers_share_nothing() -> None:
    model = make((FIRE, STEER), config=config(actor_critic_share_weights=False))
    obs = observations(VECTOR, 64)

    evaluate(model, obs, model.act(obs).actions).log_prob.mean().backward()
    actor = parameters_with_gradient(model)
    model.zero_grad()
    model(obs).value.mean().backward()
    critic = parameters_with_gradient(model)

    assert not actor & critic
    assert actor | critic == {name for name, _ in model.named_parameters()}


def test_scale_and_mean_apply_to_images_in_a_dict() -> None:
    obs = observations(EVERYTHING, 3)
    before = {path: leaf.clone() for path, leaf in obs.items()}
    encoder = MLPEncoder(EVERYTHING, config(encoder_mlp_layers=(), obs_subtract_mean=10.0, obs_scale=255.0))

    features = encoder(obs)

    flat = torch.cat([leaf.reshape(3, -1).to(torch.float32) for leaf in obs.values()], dim=1)
    assert encoder.out_size == NUM_EVERYTHING
    torch.testing.assert_close(features, (flat - 10.0) / 255.0)
    assert all(torch.equal(obs[path], leaf) for path, leaf in before.items())


@pytest.mark.parametrize("nonlinearity", ["elu", "relu", "tanh"])
def test_forward_leaves_observations_and_recorded_inputs_untouched(nonlinearity: str) -> None:
    model = make(config=config(nonlinearity=nonlinearity))
    obs = observations(VECTOR, 5)
    before = obs["obs"].clone()

    with torch.inference_mode():
        first = model(obs)
        second = model(obs)

    assert torch.equal(obs["obs"], before)
    assert torch.equal(first.dist_params, second.dist_params)


def test_leaves_are_read_in_the_order_of_the_spec() -> None:
    model = make(obs=EVERYTHING)
    obs = observations(EVERYTHING, 4)

    shuffled = dict(reversed(obs.items()))

    assert torch.equal(model(obs).value, model(shuffled).value)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(tanh_, torch.tanh), (elu_, torch.nn.functional.elu), (relu_, torch.relu)]
)
def test_activations_and_their_gradients_are_those_of_torch(ours: object, theirs: object) -> None:
    assert callable(ours)
    assert callable(theirs)
    x = torch.linspace(-12.0, 12.0, 10_001, requires_grad=True)

    # A multiplication stands in for the layer, since the result may be computed in its place.
    result, expected = ours(x * 1.0), theirs(x)
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)

    torch.testing.assert_close(result, expected, atol=2e-7, rtol=2e-6)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(ours(x * 1.0), expected, atol=2e-7, rtol=2e-6)
