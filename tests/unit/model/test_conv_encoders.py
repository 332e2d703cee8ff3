"""Images of any layout and size become features by each architecture; other leaves go through an MLP."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfactory.action_heads import DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError, ExitCode
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.encoders import ConvEncoder, MLPEncoder, _channels_last, make_encoder
from sfactory.spec import EnvSpec, TensorSpec

EVERY_ARCHITECTURE = pytest.mark.parametrize(
    "architecture", ["convnet_simple", "convnet_impala", "convnet_atari", "resnet_impala", "resnet_impoola"]
)
ATARI = TensorSpec((4, 84, 84), "uint8", layout="chw")
SMALL_IMAGE = TensorSpec((3, 64, 64), "uint8", layout="chw")


def config(architecture: str = "convnet_atari", **fields: Any) -> ModelConfig:
    small = {"encoder_mlp_layers": (16,), "encoder_conv_mlp_layers": (32,), "encoder_conv_architecture": architecture}
    return ModelConfig(**{**small, **fields})


def make(spec: TensorSpec, settings: ModelConfig) -> ConvEncoder:
    torch.manual_seed(0)
    return ConvEncoder("obs", spec, settings, normalized=False, dtype=torch.float32)


def images(spec: TensorSpec, batch: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    leaf = torch.randint(0, 256, (batch, *spec.shape), dtype=torch.uint8, generator=generator)
    return leaf.to(getattr(torch, spec.dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(3, 4, 6, 5), (2, 1, 6, 5), (1, 13, 2, 2), (0, 3, 4, 4), (2, 6, 5, 3)])
def test_rearranged_images_are_the_same(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, shape).to(dtype)
    for each in (x, x.transpose(2, 3)):
        rearranged = _channels_last(each)

        assert torch.equal(rearranged, each)
        assert rearranged.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("architecture", "spec", "flattened"),
    [
        ("convnet_simple", ATARI, 128 * 4 * 4),
        ("convnet_impala", ATARI, 32 * 9 * 9),
        ("convnet_atari", ATARI, 64 * 7 * 7),
        ("convnet_minatar", TensorSpec((10, 10, 4), "bool", layout="hwc"), 16 * 8 * 8),
        ("resnet_impala", ATARI, 32 * 11 * 11),
        ("convnet_simple", SMALL_IMAGE, 128 * 2 * 2),
        ("convnet_impala", TensorSpec((72, 128, 3), "uint8", layout="hwc"), 32 * 7 * 14),
        ("resnet_impala", TensorSpec((7, 7, 3), "uint8", layout="hwc"), 32 * 1 * 1),
        ("resnet_impala", TensorSpec((1, 1, 1), "float32", layout="chw"), 32 * 1 * 1),
        ("resnet_impoola", ATARI, 32),
    ],
)
def test_convolutions_have_the_sizes_of_their_architecture(architecture: str, spec: TensorSpec, flattened: int) -> None:
    bare = make(spec, config(architecture, encoder_conv_mlp_layers=()))
    whole = make(spec, config(architecture, encoder_conv_mlp_layers=(24, 12)))
    obs = {"obs": images(spec)}

    assert bare.out_size == flattened
    assert bare(obs).shape == (3, flattened)
    assert whole.out_size == 12
    assert whole(obs).shape == (3, 12)
    assert whole(obs).dtype == torch.float32


def test_impoola_is_the_mean_over_all_places_of_the_images_of_impala() -> None:
    flat, pooled = (
        make(ATARI, config(name, encoder_conv_mlp_layers=())) for name in ("resnet_impala", "resnet_impoola")
    )
    obs = {"obs": images(ATARI)}

    torch.testing.assert_close(pooled(obs), flat(obs).view(3, 32, -1).mean(-1))


@EVERY_ARCHITECTURE
@pytest.mark.parametrize("nonlinearity", ["elu", "relu", "tanh"])
def test_gradients_reach_every_parameter(architecture: str, nonlinearity: str) -> None:
    encoder = make(SMALL_IMAGE, config(architecture, nonlinearity=nonlinearity, obs_scale=255.0))

    encoder({"obs": images(SMALL_IMAGE)}).square().sum().backward()

    without = [name for name, p in encoder.named_parameters() if p.grad is None or not bool((p.grad != 0.0).any())]
    assert without == []


@EVERY_ARCHITECTURE
@pytest.mark.parametrize("mean", [0.0, 20.0])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_scaling_inside_equals_scaling_before(architecture: str, mean: float, dtype: str) -> None:
    spec = TensorSpec(SMALL_IMAGE.shape, dtype, layout="chw")
    raw = make(spec, config(architecture, obs_scale=255.0, obs_subtract_mean=mean))
    scaled = make(TensorSpec(SMALL_IMAGE.shape, "float32", layout="chw"), config(architecture))
    leaf = images(spec)
    before = leaf.clone()

    # Acting and learning use different memory formats.
    learning = raw({"obs": leaf})
    with torch.inference_mode():
        acting = raw({"obs": leaf})
        expected = scaled({"obs": (leaf.float() - mean) / 255.0})

    torch.testing.assert_close(acting, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(learning.detach(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(leaf, before)


@EVERY_ARCHITECTURE
def test_channels_first_and_last_give_the_same_features(architecture: str) -> None:
    last = TensorSpec((64, 64, 3), "uint8", layout="hwc")
    leaf = images(SMALL_IMAGE)

    features = make(SMALL_IMAGE, config(architecture))({"obs": leaf})
    same = make(last, config(architecture))({"obs": leaf.permute(0, 2, 3, 1).contiguous()})

    torch.testing.assert_close(same, features, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("architecture", "least"),
    [("convnet_simple", 36), ("convnet_impala", 20), ("convnet_atari", 36), ("convnet_minatar", 3)],
)
def test_only_an_image_that_is_too_small_is_refused(architecture: str, least: int) -> None:
    enough = TensorSpec((least, least, 3), "uint8", layout="hwc")
    assert make(enough, config(architecture))({"obs": images(enough)}).shape == (3, 32)
    spec = EnvSpec(
        (("camera/left", TensorSpec((least, least - 1, 3), "uint8", layout="hwc")),), (DiscreteHead("action", 2),)
    )

    with pytest.raises(EnvError, match=f"'camera/left' .* too small for .*={architecture}, .* {least}x") as refused:
        ActorCritic(spec, config(architecture))
    assert refused.value.exit_code == ExitCode.REFUSED


def test_features_of_images_and_other_leaves_are_joined() -> None:
    obs = (
        ("camera", SMALL_IMAGE),
        ("speed", TensorSpec((), "float32")),
        ("map", TensorSpec((40, 40, 1), "uint8", layout="hwc")),
        ("switches", TensorSpec((5,), "int8")),
    )
    settings = config("convnet_simple", encoder_conv_mlp_layers=(32,), encoder_mlp_layers=(16, 8))
    encoder = make_encoder(obs, settings)
    leaves = {"camera": images(SMALL_IMAGE), "map": images(obs[2][1])}
    leaves |= {"speed": torch.rand(3), "switches": torch.ones(3, 5, dtype=torch.int8)}

    features = encoder(leaves)
    faster = encoder({**leaves, "speed": leaves["speed"] + 1.0})
    features.sum().backward()

    assert isinstance(make_encoder(((obs[1]), ("grid", TensorSpec((84, 84), "uint8"))), settings), MLPEncoder)
    assert isinstance(make_encoder(obs[:1], settings), ConvEncoder)
    assert features.shape == (3, 32 + 32 + 8)
    assert encoder.out_size == 32 + 32 + 8
    assert torch.equal(features[:, :64], faster[:, :64])
    assert not torch.equal(features[:, 64:], faster[:, 64:])
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_convolutions_are_orthogonal_with_the_gain_of_their_activation() -> None:
    encoder = make(ATARI, config("convnet_atari", nonlinearity="relu", policy_init_gain=0.5))
    layers = [layer for layer in encoder.stack.modules() if isinstance(layer, nn.Conv2d)]

    for layer in layers:
        rows = layer.weight.detach().flatten(1)
        torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)) * 0.5**2 * 2.0, atol=1e-5, rtol=0.0)
        assert layer.bias is not None
        assert not bool(layer.bias.any())
    assert len(layers) == 3


def test_residual_blocks_preserve_the_size_of_their_input() -> None:
    encoder = make(SMALL_IMAGE, config("resnet_impala", obs_scale=255.0, encoder_conv_mlp_layers=()))

    with torch.inference_mode():
        features = encoder({"obs": images(SMALL_IMAGE, 16)})

    # Without scaled gains, sums of six branches would be many times as large as the inputs, which lie in [0, 1].
    assert 0.05 < float(features.square().mean().sqrt()) < 2.0
