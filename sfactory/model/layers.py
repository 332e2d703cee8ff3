"""Activation functions, and linear layers: their initialization, and normalization by layer or by spectrum.

Spectral normalization: Miyato et al. 2018, "Spectral normalization for generative adversarial networks", algorithm 1.

NOTE [Spectral vectors]: the largest singular value is estimated from two vectors. These follow the weights by one power
iteration after each update, never within a forward pass. So actors and learner, on any part of a batch and however
often, compute with the same weights at the same version. The vectors are published, saved and resumed with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.precision import Linear

Initialization = Literal["orthogonal", "xavier_uniform", "torch_default"]

# numpy's vectorized float32 tanh runs on one thread and is about 6 times as fast as one thread of torch's.
_NUMPY_PAYS_UP_TO_THREADS = 6


class NormedLinear(Linear):
    """A linear layer with layer normalization of its outputs (Ba et al. 2016, "Layer normalization")."""

    def __init__(self, in_size: int, out_size: int, dtype: torch.dtype) -> None:
        super().__init__(in_size, out_size, dtype)
        self.gain = nn.Parameter(torch.ones(out_size))
        self.shift = nn.Parameter(torch.zeros(out_size))

    def forward(self, x: Tensor) -> Tensor:
        """See Linear."""
        y = super().forward(x)
        return F.layer_norm(y, y.shape[-1:], self.gain.to(y.dtype), self.shift.to(y.dtype))


class _NumpyTanh(torch.autograd.Function):
    """tanh in place by numpy, with torch's own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _numpy_tanh_(x.detach())
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grads[0], y)


def _numpy_tanh_(x: Tensor) -> Tensor:
    array = x.numpy()
    np.tanh(array, out=array)
    return x


def tanh_(x: Tensor) -> Tensor:
    """tanh of ``x``, in place; equal to torch.tanh to 1e-7. On a CPU with few threads it is several times faster."""
    if torch.compiler.is_compiling():  # or exporting, which sees nothing of numpy
        return torch.tanh(x)
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.get_num_threads() > _NUMPY_PAYS_UP_TO_THREADS:
        return torch.tanh_(x)
    if x.requires_grad and torch.is_grad_enabled():
        return _NumpyTanh.apply(x)
    return _numpy_tanh_(x.detach())


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # all in place
    "elu": partial(F.elu, inplace=True),
    "relu": torch.relu_,
    "tanh": tanh_,
}

# Gains that preserve the size of signals through an orthogonal layer and the activation (He et al. 2015 for relu;
# torch.nn.init.calculate_gain for tanh; elu behaves like relu).
GAINS: dict[str, float] = {"elu": 2.0**0.5, "relu": 2.0**0.5, "tanh": 5.0 / 3.0}

_FIRST_ITERATIONS = 30  # on fresh weights, before the first pass
_SMALLEST = 1e-12  # singular value: a layer of zeros stays zero


class SpectralLinear(Linear):
    """A linear layer that divides its weights by their largest singular value.

    left: [out_size], right: [in_size] float32, of length 1 - estimates of the singular vectors of that value.
    """

    left: Tensor
    right: Tensor

    def __init__(self, in_size: int, out_size: int, dtype: torch.dtype) -> None:
        """Call ``settle`` after drawing the weights."""
        super().__init__(in_size, out_size, dtype)
        for name, size in (("left", out_size), ("right", in_size)):
            vector = torch.empty(size)
            self.register_buffer(name, vector if vector.is_meta else F.normalize(vector.normal_(), dim=0))

    def multiplied_with(self) -> Tensor:
        """[out_size, in_size] float32 - weights / largest singular value, with gradients through both."""
        if self.is_final:
            return self.weight
        norm = torch.dot(self.left, torch.mv(self.weight, self.right))
        return self.weight / norm.clamp(min=_SMALLEST)

    def forward(self, x: Tensor) -> Tensor:
        """[B, out_size] of x: [B, in_size], in the dtype of the layer; see Linear."""
        dtype = self.compute_dtype
        return F.linear(x.to(dtype), self.multiplied_with().to(dtype), self.bias.to(dtype))

    def settle(self) -> None:
        """Estimate the vectors of fresh weights."""
        for _ in range(_FIRST_ITERATIONS):
            self.follow(torch.tensor(True))

    @torch.no_grad()
    def follow(self, taken: Tensor) -> None:
        """Update the vectors after an update of the weights, if it was ``taken`` (0-dim bool)."""
        right = F.normalize(torch.mv(self.weight.t(), self.left), dim=0, eps=_SMALLEST)
        left = F.normalize(torch.mv(self.weight, right), dim=0, eps=_SMALLEST)
        self.left.copy_(torch.where(taken, left, self.left))  # in place: published bytes are views of them
        self.right.copy_(torch.where(taken, right, self.right))


def linear_layers(
    sizes: Sequence[int], config: ModelConfig, dtype: torch.dtype = torch.float32, gains: Sequence[float] = ()
) -> tuple[Linear, ...]:
    """A layer from each of ``sizes`` to the next, initialized for the activation, and for ``gains`` of its inputs."""
    kind = SpectralLinear if config.use_spectral_norm else NormedLinear if config.use_layer_norm else Linear
    layers = tuple(kind(*pair, dtype) for pair in pairwise(sizes))
    for layer in layers:
        initialize(layer, config.policy_initialization, config.policy_init_gain * GAINS[config.nonlinearity])
        if layer.weight.is_meta:  # there the rest would import torch's compiler, and have no effect
            continue
        if gains:
            layer.weight.data *= torch.tensor(gains)
        if isinstance(layer, SpectralLinear):
            layer.settle()
    return layers


def initialize(layer: nn.Linear | nn.Conv2d, how: Initialization, gain: float) -> None:
    """Draw orthogonal (Saxe et al. 2014) or uniform (Glorot and Bengio 2010) weights of that gain; set biases to 0.

    ``torch_default`` changes nothing. A convolution counts as the linear map from an input patch to output channels.
    """
    if how == "torch_default":
        return
    init = nn.init.orthogonal_ if how == "orthogonal" else nn.init.xavier_uniform_
    init(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
