"""Room: the activation functions of the network, in the fastest form for where they run.

In: a tensor that nobody else needs (it may be overwritten). Out: the activation of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# numpy's vectorized float32 tanh runs on one thread and is about 6 times as fast as one thread of torch's.
_NUMPY_PAYS_UP_TO_THREADS = 6


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
    """tanh of ``x``, in place. Equal to torch.tanh to 1e-7; on a CPU with few threads several times faster."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.get_num_threads() > _NUMPY_PAYS_UP_TO_THREADS:
        return torch.tanh_(x)
    if x.requires_grad and torch.is_grad_enabled():
        return _NumpyTanh.apply(x)
    return _numpy_tanh_(x.detach())


def elu_(x: Tensor) -> Tensor:
    """ELU of ``x``, in place."""
    return F.elu(x, inplace=True)


def relu_(x: Tensor) -> Tensor:
    """ReLU of ``x``, in place."""
    return torch.relu_(x)


Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {"elu": elu_, "relu": relu_, "tanh": tanh_}

# Factors that keep the size of signals through an orthogonal layer followed by the activation (He et al.
# 2015 for relu; torch.nn.init.calculate_gain for tanh; elu, having none there, behaves like relu).
GAINS: dict[str, float] = {"elu": 2.0**0.5, "relu": 2.0**0.5, "tanh": 5.0 / 3.0}
