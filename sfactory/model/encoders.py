"""Encodes observations as one feature vector per row.

The forward pass runs for every step of every env, so it issues as few operations as possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError
from sfactory.model.entities import EntityEncoder
from sfactory.model.layers import ACTIVATIONS, GAINS, initialize, linear_layers
from sfactory.model.precision import Conv2d, wide
from sfactory.tensor_spec import PLAIN_STACKS, Layout, ObsSpec, TensorSpec, least_image_size


class ChoiceEncoder(nn.Module):
    """Features [B, out_size] of one leaf [B, *shape] with k elements, each one of finitely many values.

    One-hot vectors side by side if the values of all elements together are at most ``one_hot_max``. Otherwise a vector
    of ``embedding_size`` numbers for each element, from one table if all elements have equally many values (as the
    cells of a grid have), else from a table per element.
    """

    # [k] int64 each: the least and the largest value, and from a value to its place in the vector or row of the table
    starts: Tensor
    last: Tensor
    offsets: Tensor

    def __init__(self, spec: TensorSpec, config: ModelConfig, dtype: torch.dtype, read: int) -> None:
        """``dtype``: of the features. ``read``: elements of all leaves that the next layer reads, this one included."""
        super().__init__()
        self._dtype = dtype
        elements = math.prod(spec.shape)
        sizes = spec.sizes * (elements // len(spec.sizes))
        starts = spec.starts * (elements // len(spec.starts))
        self._width = sum(sizes)
        embedded = self._width > config.one_hot_max
        shared = embedded and len(set(sizes)) == 1
        firsts = [0] * elements if shared else [0, *accumulate(sizes[:-1])]
        last = [start + size - 1 for start, size in zip(starts, sizes, strict=True)]
        offsets = [first - start for first, start in zip(firsts, starts, strict=True)]
        for name, values in (("starts", starts), ("last", last), ("offsets", offsets)):
            # Not saved, since they follow from the spec.
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)
        # gains, of each feature: what its weights in the next layer are multiplied with at first. One value of n is 1
        # at a time, and weighs as much as n numbers where at least n elements are read, as in a grid. Where few are
        # read it weighs as much as these: then all values start alike, as in a table. A weight that is used once in n
        # steps moves little, and a large one would stay the random number that it was. At first biases, which all
        # values share, outweigh a small one; Taxi, with 500 values, is learned further all the same.
        self.table: nn.Embedding | None = None
        if embedded:
            rows = sizes[:1] if shared else sizes
            self.table = nn.Embedding(sum(rows), config.obs_embedding_size)
            if not self.table.weight.is_meta:  # as in linear_layers
                weights = torch.tensor([math.sqrt(min(1.0, read / size)) for size in rows])
                self.table.weight.data *= weights.repeat_interleave(torch.tensor(rows)).unsqueeze(1)
            self.gains = [1.0] * (elements * config.obs_embedding_size)
        else:
            self.gains = [math.sqrt(min(size, read)) for size in sizes for _ in range(size)]
        self.out_size = len(self.gains)

    def forward(self, leaf: Tensor) -> Tensor:
        """[B, out_size] of leaf [B, *shape], any integer dtype. Values out of range, as in padding, are clamped."""
        values = leaf.reshape(leaf.shape[0], -1).long()
        places = torch.minimum(torch.maximum(values, self.starts), self.last) + self.offsets
        if self.table is not None:
            return self.table(places).flatten(1).to(self._dtype)
        features = torch.zeros(leaf.shape[0], self._width, dtype=self._dtype, device=leaf.device)
        return features.scatter_(1, places, 1.0)


class MLPEncoder(nn.Module):
    """An MLP over all leaves as float32, flattened and joined in the order of the spec.

    Numbers are scaled, except leaves in ``normalized``; choices are encoded by ChoiceEncoder. Every layer is followed
    by the activation.

    leaves: (path, features, encoder of choices or None) of each leaf.
    """

    def __init__(self, obs: ObsSpec, config: ModelConfig, normalized: frozenset[str], dtype: torch.dtype) -> None:
        """``dtype``: of the computation in all layers but the first, which reads numbers of any size."""
        super().__init__()
        self._wide = wide(dtype)
        read = sum(math.prod(spec.shape) for _, spec in obs)
        choices = {path: ChoiceEncoder(spec, config, self._wide, read) for path, spec in obs if spec.is_choice}
        self.choices = nn.ModuleList(choices.values())
        self.leaves = tuple(
            (path, choices[path].out_size if path in choices else math.prod(spec.shape), choices.get(path))
            for path, spec in obs
        )
        self._subtract_mean, self._scale = config.obs_subtract_mean, config.obs_scale
        scales = config.obs_subtract_mean != 0.0 or config.obs_scale != 1.0
        self._scaled = frozenset(path for path, _ in obs if scales and path not in normalized and path not in choices)
        self._activation = ACTIVATIONS[config.nonlinearity]
        sizes = [sum(size for _, size, _ in self.leaves), *config.encoder_mlp_layers]
        gains = [choice.gains if choice is not None else [1.0] * size for _, size, choice in self.leaves]
        # Calling a module costs as much as the smallest layers, so forward() is called directly.
        self._linears = (
            *linear_layers(sizes[:2], config, self._wide, list(chain(*gains))),
            *linear_layers(sizes[1:], config, dtype),
        )
        self.layers = nn.ModuleList(self._linears)
        self.out_size = sizes[-1]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features [B, out_size] of obs {path: [B, *shape] any numeric dtype}, which is not changed."""
        x = self._inputs(obs)
        for layer in self._linears:
            x = self._activation(layer.forward(x))
        return x

    def weights_of_choices(self) -> list[Tensor]:
        """Matrices of which each value of a choice has a row or a column: a step uses few of them."""
        choices = [choice for _, _, choice in self.leaves if choice is not None]
        tables = [choice.table.weight for choice in choices if choice.table is not None]
        reads_one_hot = self._linears and len(tables) < len(choices)
        return [*tables, self._linears[0].weight] if reads_one_hot else [*tables]

    def _inputs(self, obs: dict[str, Tensor]) -> Tensor:
        """[B, sum of leaf sizes] in the first layer's dtype, scaled; may be a view of a single leaf."""
        flat = [
            self._flat(obs[path], size) if choice is None else choice.forward(obs[path])
            for path, size, choice in self.leaves
        ]
        if self._scaled:
            leaves = zip(flat, self.leaves, strict=True)
            flat = [(x - self._subtract_mean) / self._scale if leaf[0] in self._scaled else x for x, leaf in leaves]
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)

    def _flat(self, leaf: Tensor, size: int) -> Tensor:
        if leaf.dtype != self._wide:
            leaf = leaf.to(self._wide)
        return leaf if leaf.dim() == 2 else leaf.reshape(leaf.shape[0], size)


_RESIDUAL_CHANNELS = (16, 32, 32)
_BLOCKS_PER_STAGE = 2
_FEW_CHANNELS = 12  # with more, and with floats, torch.stack takes longer than contiguous


def as_image(leaf: Tensor, layout: Layout) -> Tensor:
    """[B, C, H, W] of leaf [B, *shape]; the images of a stack are channels. A view, except of thwc."""
    if layout == "hw":
        return leaf.unsqueeze(1)
    if layout == "hwc":
        return leaf.permute(0, 3, 1, 2)
    if layout == "thwc":
        return leaf.permute(0, 1, 4, 2, 3).flatten(1, 2)
    return leaf.flatten(1, 2) if layout == "tchw" else leaf


class PlainStack(nn.Module):
    """Convolutions, each followed by the activation."""

    def __init__(self, shape: tuple[int, int, int], config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[config.nonlinearity]
        gain = config.policy_init_gain * GAINS[config.nonlinearity]
        layers: list[Conv2d] = []
        channels, height, width = shape
        for out_channels, kernel, stride in PLAIN_STACKS[config.encoder_conv_architecture]:
            layers.append(_conv((channels, out_channels, kernel, stride, 0), config, gain, dtype))
            channels = out_channels
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self._convs = tuple(layers)
        self.convs = nn.ModuleList(layers)
        self.out_size = channels * height * width

    def forward(self, x: Tensor, factor: float) -> Tensor:
        """[B, C', H', W'] of ``factor`` times the images x: [B, C, H, W]."""
        for layer in self._convs:
            x = self._activation(layer.forward(x, factor))
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
        self.entry = _conv((in_channels, channels, 3, 1, 1), config, gain, dtype)
        pairs = [
            [_conv((channels, channels, 3, 1, 1), config, gain, dtype) for gain in (inner, outer)]
            for _ in range(_BLOCKS_PER_STAGE)
        ]
        self.inner = nn.ModuleList(pair[0] for pair in pairs)
        self.outer = nn.ModuleList(pair[1] for pair in pairs)
        self._blocks = tuple(pairs)

    def forward(self, x: Tensor, factor: float) -> Tensor:
        """[B, channels, ceil(H / 2), ceil(W / 2)] of ``factor`` times x: [B, in_channels, H, W]."""
        act = self._activation
        x = F.max_pool2d(self.entry.forward(x, factor), kernel_size=3, stride=2, padding=1)
        for inner, outer in self._blocks:
            # A copy, since activations overwrite what they are given and the sum still needs x.
            x = x + outer(act(inner(act(x.clone()))))
        return x


class ResidualStack(nn.Module):
    """The deep network of Espeholt et al. 2018 (IMPALA, figure 3) without its memory. Takes images of any size.

    resnet_impoola: each channel of the last images is averaged over all places, so that the linear layer after it is as
    small for large images as for small ones. Source: Trumpp et al. 2025, "Impoola: The power of average pooling for
    image-based deep reinforcement learning".
    """

    def __init__(self, shape: tuple[int, int, int], config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[config.nonlinearity]
        channels, height, width = shape
        stages: list[ResidualStage] = []
        for out_channels in _RESIDUAL_CHANNELS:
            stages.append(ResidualStage(channels, out_channels, config, dtype))
            channels, height, width = out_channels, (height + 1) // 2, (width + 1) // 2
        self.stages = nn.ModuleList(stages)
        self._pools = config.encoder_conv_architecture == "resnet_impoola"
        self.out_size = channels if self._pools else channels * height * width

    def forward(self, x: Tensor, factor: float) -> Tensor:
        """As PlainStack.forward; [B, C'] if it pools."""
        for stage in self.stages:
            x = stage(x, factor)
            factor = 1.0
        x = self._activation(x)
        return x.mean((2, 3)) if self._pools else x


class ConvEncoder(nn.Module):
    """Features of the image leaf ``path``: convolutions, then linear layers, each followed by the activation.

    Images may have any layout of TensorSpec and any numeric dtype.
    """

    def __init__(self, path: str, spec: TensorSpec, config: ModelConfig, normalized: bool, dtype: torch.dtype) -> None:
        """``normalized``: images come normalized and are not scaled. ``dtype``: of the computation."""
        super().__init__()
        self._path, self._dtype = path, dtype
        self._layout = spec.layout
        self._subtract_mean = 0.0 if normalized else config.obs_subtract_mean
        self._factor = 1.0 if normalized else 1.0 / config.obs_scale
        self._activation = ACTIVATIONS[config.nonlinearity]
        shape = spec.image_shape
        architecture = config.encoder_conv_architecture
        least = least_image_size(architecture)
        if min(shape[1:]) < least:
            raise EnvError(
                f"observation {path!r} of shape {spec.shape} is too small for "
                f"--encoder_conv_architecture={architecture}, which needs {least}x{least} pixels; use "
                "--encoder_conv_architecture=convnet_minatar or resnet_impala, which takes images of any size, or "
                f"--obs_layout={path}=flat"
            )
        stack = PlainStack if architecture in PLAIN_STACKS else ResidualStack
        self.stack = stack(shape, config, dtype)
        sizes = [self.stack.out_size, *config.encoder_conv_mlp_layers]
        self._linears = linear_layers(sizes, config, dtype)
        self.layers = nn.ModuleList(self._linears)
        self.out_size = sizes[-1]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """As MLPEncoder.forward."""
        # The stack scales its first weights, which are far fewer numbers than the images.
        images, factor = self._images(obs[self._path]), self._factor
        if images.dtype is not self._dtype:
            images, factor = images * factor, 1.0  # numbers of any size are scaled before they are cast
        x = self.stack.forward(images, factor).flatten(1)
        for layer in self._linears:
            x = self._activation(layer.forward(x))
        return x

    def _images(self, leaf: Tensor) -> Tensor:
        """[B, C, H, W] in the dtype of the computation (or float32), minus the mean, not yet scaled."""
        x = as_image(leaf, self._layout)
        if x.device.type == "cpu" and torch.is_grad_enabled():
            # It makes training on a CPU 40 % and more faster, acting with one thread 8 % slower. uint8 is cheaper to
            # rearrange, so this comes before the cast.
            x = _channels_last(x)
        # Tensor cores of a GPU read images so; otherwise cuDNN rearranges them before and after every convolution.
        order = torch.channels_last if x.device.type == "cuda" else torch.preserve_format
        if leaf.dtype is torch.uint8 and self._subtract_mean == 0.0:
            return x.to(self._dtype, memory_format=order)  # all formats represent 256 values exactly
        x = x.to(torch.float32, memory_format=order)
        return x if self._subtract_mean == 0.0 else x - self._subtract_mean


def _channels_last(x: Tensor) -> Tensor:
    """Images [B, C, H, W] with the channels of a pixel side by side in memory."""
    if x.dtype is torch.uint8 and x.shape[1] <= _FEW_CHANNELS and x.is_contiguous():
        return torch.stack(x.unbind(1), -1).permute(0, 3, 1, 2)  # in half the time
    return x.contiguous(memory_format=torch.channels_last)


def _conv(size: tuple[int, int, int, int, int], config: ModelConfig, gain: float, dtype: torch.dtype) -> Conv2d:
    """``size``: input and output channels, kernel, stride, padding."""
    layer = Conv2d(*size, dtype)
    initialize(layer, config.policy_initialization, gain)
    return layer


class MultiEncoder(nn.Module):
    """Several encoders; their features side by side."""

    def __init__(self, parts: Sequence[ConvEncoder | EntityEncoder | MLPEncoder]) -> None:
        super().__init__()
        self._parts = tuple(parts)
        self.parts = nn.ModuleList(parts)
        self.out_size = sum(part.out_size for part in parts)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """As MLPEncoder.forward."""
        return torch.cat([part.forward(obs) for part in self._parts], dim=1)


Encoder = MLPEncoder | ConvEncoder | EntityEncoder | MultiEncoder


def make_encoder(
    obs: ObsSpec, config: ModelConfig, normalized: frozenset[str] = frozenset(), dtype: torch.dtype = torch.float32
) -> Encoder:
    """A ConvEncoder for each image, an EntityEncoder for each set, then one MLPEncoder for all other leaves (with
    ``encoder_per_key`` one for each) but masks and what the core reads.

    ``normalized``: paths of the leaves that come normalized. ``dtype``: of the computation. Raises EnvError if an image
    is too small for the convolutions.
    """
    parts: list[ConvEncoder | EntityEncoder | MLPEncoder] = [
        ConvEncoder(path, spec, config, path in normalized, dtype) for path, spec in obs if spec.is_image
    ]
    parts += [
        EntityEncoder(path, spec, config, path in normalized, dtype) for path, spec in obs if spec.layout == "entities"
    ]
    others = tuple(leaf for leaf in obs if leaf[1].layout in ("flat", "choices"))
    groups = [(leaf,) for leaf in others] if config.encoder_per_key else [others] if others else []
    parts += [MLPEncoder(group, config, normalized, dtype) for group in groups]
    return parts[0] if len(parts) == 1 else MultiEncoder(parts)
