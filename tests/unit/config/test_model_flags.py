"""Each flag of the network changes of it what it promises, by numbers."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.encoders import MLPEncoder
from sfactory.model.layers import NormedLinear
from sfactory.model.rnn import RecurrentCore
from sfactory.spec import EnvSpec, TensorSpec

OBS = (("obs", TensorSpec((20,), "float32")),)
FIRE = DiscreteHead("fire", 3)
STEER = BoxHead("steer", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))
GAS = BoxHead("gas", (1,), "float32", (0.0,), (1.0,))
BARE = ModelConfig(encoder_mlp_layers=(30, 12), normalize_input=False, normalize_returns=False)


def make(heads: tuple[ActionHead, ...] = (FIRE,), **fields: object) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(EnvSpec(OBS, heads), dataclasses.replace(BARE, **fields))  # type: ignore[arg-type]


def layers_of(model: ActorCritic) -> list[torch.nn.Linear]:
    encoder = model.tower.encoder
    assert isinstance(encoder, MLPEncoder)
    return [layer for layer in encoder.layers if isinstance(layer, torch.nn.Linear)]


def observations(rows: int = 64) -> dict[str, Tensor]:
    return {"obs": torch.randn(rows, 20, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize(("nonlinearity", "gain"), [("elu", 2**0.5), ("relu", 2**0.5), ("tanh", 5 / 3)])
@pytest.mark.parametrize("init_gain", [1.0, 0.25])
def test_initial_weights_have_the_spread_of_their_initialization(
    nonlinearity: str, gain: float, init_gain: float
) -> None:
    uniform, orthogonal = (
        make(nonlinearity=nonlinearity, policy_initialization=how, policy_init_gain=init_gain)
        for how in ("xavier_uniform", "orthogonal")
    )

    for layer in layers_of(uniform):
        bound = init_gain * gain * math.sqrt(6.0 / (layer.in_features + layer.out_features))
        assert 0.95 * bound < float(layer.weight.detach().abs().max()) <= bound
        # A uniform distribution has a deviation of bound / sqrt(3).
        assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3.0), rel=0.1)
    for layer in layers_of(orthogonal):
        values = torch.linalg.svdvals(layer.weight.detach())
        torch.testing.assert_close(values, torch.full_like(values, init_gain * gain))
    assert not any(bool(layer.bias.any()) for layer in (*layers_of(uniform), *layers_of(orthogonal)))


def test_torch_default_leaves_layers_as_torch_makes_them() -> None:
    model = make(policy_initialization="torch_default", policy_init_gain=100.0)

    torch.manual_seed(0)
    for layer, (inputs, outputs) in zip(layers_of(model), [(20, 30), (30, 12)], strict=True):
        made = torch.nn.Linear(inputs, outputs)
        assert torch.equal(layer.weight, made.weight)
        assert torch.equal(layer.bias, made.bias)


@pytest.mark.parametrize("how", ["orthogonal", "xavier_uniform"])
def test_the_gain_is_one_of_hidden_layers_and_heads_keep_theirs(how: str) -> None:
    small, large = (make(policy_initialization=how, policy_init_gain=gain) for gain in (0.5, 2.0))

    for ours, theirs in zip(layers_of(small), layers_of(large), strict=True):
        torch.testing.assert_close(4.0 * ours.weight, theirs.weight)
    for head in ("policy_head", "value_head"):
        torch.testing.assert_close(getattr(small, head).linear.weight, getattr(large, head).linear.weight)
    # Nearly uniform at the start: the policy's gain is a hundredth of the critic's.
    policy, value = (head.linear.weight.detach().norm(dim=1).mean() for head in (small.policy_head, small.value_head))
    assert 0.005 < float(policy / value) < 0.02


@pytest.mark.parametrize(("how", "bound"), [("orthogonal", 1.0), ("xavier_uniform", 0.5), ("torch_default", 12**-0.5)])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_memory_is_initialized_as_everything_else(kind: str, how: str, bound: float) -> None:
    core = make(use_rnn=True, rnn_type=kind, rnn_size=12, policy_initialization=how).tower.core
    assert isinstance(core, RecurrentCore)

    for gate in core._weights()[0].hidden.detach().split(12):
        if how == "orthogonal":
            torch.testing.assert_close(gate @ gate.T, torch.eye(12), rtol=0.0, atol=1e-5)
        else:
            assert 0.9 * bound < float(gate.abs().max()) <= bound


@pytest.mark.parametrize(("nonlinearity", "function"), [("elu", F.elu), ("relu", F.relu), ("tanh", torch.tanh)])
def test_hidden_layers_are_followed_by_the_nonlinearity(nonlinearity: str, function: object) -> None:
    assert callable(function)
    model = make(nonlinearity=nonlinearity, decoder_mlp_layers=(7,))
    x = observations()["obs"]

    features, _ = model.tower.step({"obs": x}, torch.zeros(64, 0))

    for layer in (*layers_of(model), *model.tower._decoders):
        x = function(F.linear(x, layer.weight, layer.bias))
    assert x.shape == (64, 7)
    torch.testing.assert_close(features, x)


def test_outputs_of_linear_layers_are_normalized_before_the_nonlinearity() -> None:
    model = make(use_layer_norm=True, decoder_mlp_layers=(7,))
    x = observations()["obs"]

    features, _ = model.tower.step({"obs": x}, torch.zeros(64, 0))

    for layer in (*layers_of(model), *model.tower._decoders):
        x = F.elu(F.layer_norm(F.linear(x, layer.weight, layer.bias), (layer.out_features,)))
        assert isinstance(layer, NormedLinear)
    torch.testing.assert_close(features, x, rtol=1e-5, atol=1e-5)
    assert not isinstance(model.policy_head.linear, NormedLinear)


@pytest.mark.parametrize("layers", [(), (9,), (9, 5)])
@pytest.mark.parametrize("share", [True, False])
def test_decoder_layers_are_the_last_before_the_heads_of_actor_and_critic(share: bool, layers: tuple[int, ...]) -> None:
    model = make(decoder_mlp_layers=layers, actor_critic_share_weights=share)

    sizes = [12, *layers]
    assert [(d.in_features, d.out_features) for d in model.tower._decoders] == list(zip(sizes, layers, strict=False))
    assert model.policy_head.linear.in_features == model.value_head.linear.in_features == sizes[-1]
    # 20 -> 30 -> 12 -> layers, twice if nothing is shared; then 3 logits and a value.
    tower = sum(a * b + b for a, b in zip([20, 30, *sizes], [30, *sizes], strict=False))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == tower * (1 if share else 2) + 4 * (sizes[-1] + 1)


def test_means_are_squashed_into_the_tanh_scale_and_nothing_else_is() -> None:
    heads, obs = (STEER, FIRE, GAS), observations()
    plain, squashed = (make(heads, adaptive_stddev=False, continuous_tanh_scale=c) for c in (0.0, 3.0))
    with torch.no_grad():
        for model in (plain, squashed):
            model.policy_head.linear.weight.mul_(2000.0)

    ours, theirs = squashed(obs).dist_params.detach(), plain(obs).dist_params.detach()

    means, others = [0, 1, 7], [2, 3, 4, 5, 6, 8]  # STEER: two means, two deviations; FIRE: three logits; GAS: one each
    assert float(theirs[:, means].abs().max()) > 9.0
    assert 2.7 < float(ours[:, means].abs().max()) <= 3.0
    torch.testing.assert_close(ours[:, means], 3.0 * torch.tanh(theirs[:, means] / 3.0))
    assert torch.equal(ours[:, others], theirs[:, others])


@pytest.mark.parametrize("stddev", [0.2, 3.0])
@pytest.mark.parametrize("adaptive", [True, False])
def test_actions_vary_by_the_initial_deviation_and_later_by_the_state_if_it_is_adaptive(
    adaptive: bool, stddev: float
) -> None:
    model = make((STEER,), adaptive_stddev=adaptive, initial_stddev=stddev)

    with torch.inference_mode():
        actions = model.act(observations(4000)).actions["steer"]
        model.policy_head.linear.weight.mul_(100.0)
        later: Tensor = model(observations()).dist_params[:, 2:].exp()

    assert actions.std(dim=0).tolist() == pytest.approx([stddev, stddev], rel=0.06)
    assert actions.mean(dim=0).tolist() == pytest.approx([0.0, 0.0], abs=0.08 * max(stddev, 1.0))
    if adaptive:
        assert float(later.std(dim=0).min()) > 0.05
    else:
        torch.testing.assert_close(later, torch.full((64, 2), stddev))
