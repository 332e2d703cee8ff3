"""Room: from observations to features.

In: a dict of observation leaves in their stored dtypes. Out: one feature vector per row. The
forward pass is called for every step of every env, so it issues as few operations as it can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.activations import ACTIVATIONS, GAINS
from sfactory.spec import TensorSpec

ObsSpec = tuple[tuple[str, TensorSpec], ...]


class MLPEncoder(nn.Module):
    """All leaves as float32, scaled, flattened and joined in the order of the spec, through an MLP.

    Every layer is followed by the activation. ``out_size`` is the number of features. An integer
    observation is its number, not a one-hot vector: the spec does not know its range.
    """

    def __init__(self, obs: ObsSpec, config: ModelConfig) -> None:
        super().__init__()
        self._leaves = tuple((path, math.prod(spec.shape)) for path, spec in obs)
        self._subtract_mean = config.obs_subtract_mean
        self._scale = config.obs_scale
        self._activation = ACTIVATIONS[config.nonlinearity]
        sizes = [sum(size for _, size in self._leaves), *config.encoder_mlp_layers]
        # Calling a module costs as much as the smallest layers themselves: forward goes around it.
        self._linears = linear_layers(sizes, config)
        self.layers = nn.ModuleList(self._linears)
        self.out_size = sizes[-1]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features [B, out_size] float32 of obs {path: [B, *shape] any numeric dtype}; ``obs`` is left as it is."""
        x = self._inputs(obs)
        for layer in self._linears:
            x = self._activation(F.linear(x, layer.weight, layer.bias))
        return x

    def _inputs(self, obs: dict[str, Tensor]) -> Tensor:
        """[B, sum of leaf sizes] float32, scaled; not a copy where a single leaf needs no change."""
        flat = [self._flat(obs[path], size) for path, size in self._leaves]
        x = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
        if self._subtract_mean != 0.0:
            x = x - self._subtract_mean
        if self._scale != 1.0:
            x = x / self._scale
        return x

    @staticmethod
    def _flat(leaf: Tensor, size: int) -> Tensor:
        if leaf.dtype != torch.float32:
            leaf = leaf.to(torch.float32)
        return leaf if leaf.dim() == 2 else leaf.reshape(leaf.shape[0], size)


def linear_layers(sizes: Sequence[int], config: ModelConfig) -> tuple[nn.Linear, ...]:
    """A layer from each of ``sizes`` to the next, initialized to be followed by the activation."""
    layers = tuple(nn.Linear(*pair) for pair in pairwise(sizes))
    if config.policy_initialization == "orthogonal":
        for layer in layers:
            init_orthogonal(layer, config.policy_init_gain * GAINS[config.nonlinearity])
    return layers


def init_orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Orthogonal weights of that gain and zero bias. Source: Saxe et al. 2014.

    A convolution is the linear map from one patch of its input to its output channels.
    """
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
