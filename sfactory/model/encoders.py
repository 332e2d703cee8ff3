"""Room: from observations to features.

In: a dict of observation leaves in their stored dtypes. Out: one feature vector per row. The
forward pass is called for every step of every env, so it issues as few operations as it can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.activations import ACTIVATIONS, GAINS
from sfactory.model.precision import Linear, wide
from sfactory.model.spectral import SpectralLinear
from sfactory.spec import TensorSpec

Initialization = Literal["orthogonal", "xavier_uniform", "torch_default"]
ObsSpec = tuple[tuple[str, TensorSpec], ...]


class MLPEncoder(nn.Module):
    """All leaves as float32, scaled, flattened and joined in the order of the spec, through an MLP.

    Every layer is followed by the activation. ``out_size`` is the number of features. An integer
    observation is its number, not a one-hot vector: the spec does not know its range. Leaves in
    ``normalized`` come normalized, and are not scaled again.
    """

    def __init__(
        self,
        obs: ObsSpec,
        config: ModelConfig,
        normalized: frozenset[str] = frozenset(),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """``dtype``: what all layers but the first compute in, which sees numbers of any size."""
        super().__init__()
        self._leaves = tuple((path, math.prod(spec.shape)) for path, spec in obs)
        self._subtract_mean = config.obs_subtract_mean
        self._scale = config.obs_scale
        scales = config.obs_subtract_mean != 0.0 or config.obs_scale != 1.0
        self._scaled = frozenset(path for path, _ in obs if scales and path not in normalized)
        self._activation = ACTIVATIONS[config.nonlinearity]
        sizes = [sum(size for _, size in self._leaves), *config.encoder_mlp_layers]
        # Calling a module costs as much as the smallest layers themselves: forward goes around it.
        self._wide = wide(dtype)
        self._linears = (*linear_layers(sizes[:2], config, self._wide), *linear_layers(sizes[1:], config, dtype))
        self.layers = nn.ModuleList(self._linears)
        self.out_size = sizes[-1]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features [B, out_size] of obs {path: [B, *shape] any numeric dtype}; ``obs`` is left as it is."""
        x = self._inputs(obs)
        for layer in self._linears:
            x = self._activation(layer.forward(x))
        return x

    def _inputs(self, obs: dict[str, Tensor]) -> Tensor:
        """[B, sum of leaf sizes] as wide as the layers, scaled; not a copy where a single leaf needs no change."""
        flat = [self._flat(obs[path], size) for path, size in self._leaves]
        if self._scaled:
            leaves = zip(flat, self._leaves, strict=True)
            flat = [(x - self._subtract_mean) / self._scale if path in self._scaled else x for x, (path, _) in leaves]
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)

    def _flat(self, leaf: Tensor, size: int) -> Tensor:
        if leaf.dtype != self._wide:
            leaf = leaf.to(self._wide)
        return leaf if leaf.dim() == 2 else leaf.reshape(leaf.shape[0], size)


def linear_layers(sizes: Sequence[int], config: ModelConfig, dtype: torch.dtype = torch.float32) -> tuple[Linear, ...]:
    """A layer from each of ``sizes`` to the next, initialized to be followed by the activation."""
    kind = SpectralLinear if config.use_spectral_norm else Linear
    layers = tuple(kind(*pair, dtype) for pair in pairwise(sizes))
    for layer in layers:
        initialize(layer, config.policy_initialization, config.policy_init_gain * GAINS[config.nonlinearity])
        if isinstance(layer, SpectralLinear):
            layer.settle()
    return layers


def initialize(layer: nn.Linear | nn.Conv2d, how: Initialization, gain: float) -> None:
    """Orthogonal (Saxe et al. 2014) or uniform (Glorot and Bengio 2010) weights of that gain, and zero bias.

    ``torch_default`` leaves the layer as torch made it. A convolution is the linear map from one patch of its
    input to its output channels.
    """
    if how == "torch_default":
        return
    init = nn.init.orthogonal_ if how == "orthogonal" else nn.init.xavier_uniform_
    init(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
