"""Room: from images to features.

In: one observation leaf of three dimensions, in its stored dtype. Out: one feature vector per row: a stack of
convolutions, flattened, and an MLP. The stacks are those of the flag ``encoder_conv_architecture``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError
from sfactory.model.activations import ACTIVATIONS, GAINS
from sfactory.model.encoders import initialize, linear_layers
from sfactory.model.precision import Conv2d
from sfactory.spec import TensorSpec


class ConvShape(NamedTuple):
    """One convolution without padding."""

    channels: int
    kernel: int
    stride: int


class ImageShape(NamedTuple):
    """Size of an image, channels first."""

    channels: int
    height: int
    width: int


PLAIN_STACKS: Mapping[str, tuple[ConvShape, ...]] = MappingProxyType(
    {
        "convnet_simple": (ConvShape(32, 8, 4), ConvShape(64, 4, 2), ConvShape(128, 3, 2)),
        "convnet_impala": (ConvShape(16, 8, 4), ConvShape(32, 4, 2)),  # Espeholt et al. 2018, the shallow network
        "convnet_atari": (ConvShape(32, 8, 4), ConvShape(64, 4, 2), ConvShape(64, 3, 1)),  # Mnih et al. 2015
    }
)
_RESIDUAL_CHANNELS = (16, 32, 32)
_BLOCKS_PER_STAGE = 2


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is taken to be [height, width, channels] rather than [channels, height, width].

    It is if its last dimension is smaller than both others. So (84, 84, 3) is, and (4, 84, 84) and the 17 planes
    of a board, (17, 9, 9), are not.
    """
    return shape[2] < shape[0] and shape[2] < shape[1]


def image_shape(spec: TensorSpec) -> ImageShape:
    """Channels, height and width of an image leaf, whichever way round it is stored."""
    first, second, third = spec.shape
    return ImageShape(third, first, second) if is_channels_last(spec.shape) else ImageShape(first, second, third)


class PlainStack(nn.Module):
    """Convolutions, each followed by the activation. ``out_shape`` is what they make of ``shape``."""

    def __init__(self, shape: ImageShape, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[config.nonlinearity]
        gain = config.policy_init_gain * GAINS[config.nonlinearity]
        layers: list[Conv2d] = []
        channels, height, width = shape
        for layer, (out_channels, kernel, stride) in enumerate(PLAIN_STACKS[config.encoder_conv_architecture], 1):
            if min(height, width) < kernel:
                raise _TooSmall(layer, kernel, height, width)
            layers.append(_conv(channels, out_channels, kernel, stride, 0, config, gain, dtype))
            channels = out_channels
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        # As in MLPEncoder: forward goes around the call of modules.
        self._convs = tuple(layers)
        self.convs = nn.ModuleList(layers)
        self.out_shape = ImageShape(channels, height, width)

    def forward(self, x: Tensor, factor: float) -> Tensor:
        """[B, C', H', W'] of ``factor`` times the images x: [B, C, H, W]."""
        for layer in self._convs:
            x = self._activation(layer.scaled(x, factor))
            factor = 1.0
        return x


class ResidualStage(nn.Module):
    """A convolution, a max-pool that halves the image, and two residual blocks of two convolutions each."""

    def __init__(self, in_channels: int, channels: int, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[config.nonlinearity]
        gain = config.policy_init_gain
        inner = gain * GAINS[config.nonlinearity]
        # The sum over all blocks of the network then grows no larger than one branch (as in Fixup, Zhang et al. 2019).
        outer = gain / math.sqrt(_BLOCKS_PER_STAGE * len(_RESIDUAL_CHANNELS))
        self.entry = _conv(in_channels, channels, 3, 1, 1, config, gain, dtype)
        pairs = [
            [_conv(channels, channels, 3, 1, 1, config, gain, dtype) for gain in (inner, outer)]
            for _ in range(_BLOCKS_PER_STAGE)
        ]
        self.inner = nn.ModuleList(pair[0] for pair in pairs)
        self.outer = nn.ModuleList(pair[1] for pair in pairs)
        self._blocks = tuple(pairs)

    def forward(self, x: Tensor, factor: float) -> Tensor:
        """[B, channels, ceil(H / 2), ceil(W / 2)] of ``factor`` times x: [B, in_channels, H, W]."""
        act = self._activation
        x = F.max_pool2d(self.entry.scaled(x, factor), kernel_size=3, stride=2, padding=1)
        for inner, outer in self._blocks:
            # A copy, since activations overwrite what they are given and the sum still needs x.
            x = x + outer(act(inner(act(x.clone()))))
        return x


class ResidualStack(nn.Module):
    """The deep network of Espeholt et al. 2018 (IMPALA, figure 3) without its memory. Takes images of any size."""

    def __init__(self, shape: ImageShape, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[config.nonlinearity]
        channels, height, width = shape
        stages: list[ResidualStage] = []
        for out_channels in _RESIDUAL_CHANNELS:
            stages.append(ResidualStage(channels, out_channels, config, dtype))
            channels, height, width = out_channels, (height + 1) // 2, (width + 1) // 2
        self.stages = nn.ModuleList(stages)
        self.out_shape = ImageShape(channels, height, width)

    def forward(self, x: Tensor, factor: float) -> Tensor:
        """[B, C', H', W'] of ``factor`` times the images x: [B, C, H, W]."""
        for stage in self.stages:
            x = stage(x, factor)
            factor = 1.0
        return self._activation(x)


class ConvEncoder(nn.Module):
    """Features of the image leaf ``path``: convolutions, then linear layers, each followed by the activation.

    Images may be stored channels first or last (see ``is_channels_last``), as uint8 or any other numeric dtype.
    ``out_size`` is the number of features. Raises EnvError if the images are too small for the architecture.
    """

    def __init__(
        self,
        path: str,
        spec: TensorSpec,
        config: ModelConfig,
        normalized: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """``normalized``: the images come normalized, and are not scaled again. ``dtype``: what layers compute in."""
        super().__init__()
        self._path, self._dtype = path, dtype
        self._permute = is_channels_last(spec.shape)
        self._subtract_mean = 0.0 if normalized else config.obs_subtract_mean
        self._factor = 1.0 if normalized else 1.0 / config.obs_scale
        self._activation = ACTIVATIONS[config.nonlinearity]
        shape, architecture = image_shape(spec), config.encoder_conv_architecture
        stack = ResidualStack if architecture == "resnet_impala" else PlainStack
        try:
            self.stack = stack(shape, config, dtype)
        except _TooSmall as error:
            raise EnvError(
                f"observation {path!r} of shape {spec.shape} is too small for "
                f"--encoder_conv_architecture={architecture}: {error}; use --encoder_conv_architecture=resnet_impala, "
                "which takes images of any size, or let the env give larger images"
            ) from None
        self._linears = linear_layers([math.prod(self.stack.out_shape), *config.encoder_conv_mlp_layers], config, dtype)
        self.layers = nn.ModuleList(self._linears)
        self.out_size = self._linears[-1].out_features if self._linears else math.prod(self.stack.out_shape)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features [B, out_size] of obs {path: [B, *shape] any numeric dtype}; ``obs`` is left as it is."""
        # The stack scales by its first weights, which are far fewer numbers than the images.
        images, factor = self._images(obs[self._path]), self._factor
        if images.dtype is not self._dtype:
            images, factor = images * factor, 1.0  # numbers of any size, before they become short ones
        x = self.stack.forward(images, factor).flatten(1)
        for layer in self._linears:
            x = self._activation(layer.forward(x))
        return x

    def _images(self, leaf: Tensor) -> Tensor:
        """[B, C, H, W] of the dtype computed in, less the mean; not yet scaled."""
        x = leaf.permute(0, 3, 1, 2) if self._permute else leaf
        if x.device.type == "cpu" and torch.is_grad_enabled():
            # Training on a CPU gains 40 % and more by it, acting with one thread loses 8 %. uint8 is the
            # cheaper dtype to rearrange, so this comes first.
            x = x.contiguous(memory_format=torch.channels_last)
        if leaf.dtype is torch.uint8 and self._subtract_mean == 0.0:
            return x.to(self._dtype)  # 256 values are told apart by any of the formats
        x = x.to(torch.float32)
        return x if self._subtract_mean == 0.0 else x - self._subtract_mean


class _TooSmall(Exception):
    """A kernel is larger than what is left of the image."""

    def __init__(self, layer: int, kernel: int, height: int, width: int) -> None:
        super().__init__(f"convolution {layer} looks at {kernel}x{kernel} pixels and is given {height}x{width}")


def _conv(
    in_channels: int,
    out_channels: int,
    kernel: int,
    stride: int,
    padding: int,
    config: ModelConfig,
    gain: float,
    dtype: torch.dtype,
) -> Conv2d:
    layer = Conv2d(in_channels, out_channels, kernel, stride, padding, dtype)
    initialize(layer, config.policy_initialization, gain)
    return layer
