"""A memory that is computed for all steps at once: minGRU, whose gates do not depend on the state before.

h[t] = (1 - z[t]) h[t-1] + z[t] n[t], with z[t] = sigmoid(W x[t]) and n[t] = g(V x[t]). Learning takes log2(T) passes
over all T steps in place of T small ones, forward and backward, which pays for long rollouts.

Source: Feng et al. 2024, "Were RNNs all we needed?", section 3.1 and appendix B (g keeps states positive).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sfactory.model.layers import Initialization, initialize


class MinGruCore(nn.Module):
    """Stacked minGRU layers in the form of a RecurrentCore; from the second layer on, inputs are added to outputs.

    out_size: H. state_size: S = layers * H, layer after layer.
    """

    def __init__(self, in_size: int, out_size: int, num_layers: int, initialization: Initialization) -> None:
        super().__init__()
        self.out_size, self.state_size = out_size, num_layers * out_size
        sizes = (in_size, *(out_size,) * (num_layers - 1))
        layers = [nn.Linear(size, 2 * out_size) for size in sizes]
        for layer in layers:
            initialize(layer, initialization, 1.0)
        self.layers = nn.ModuleList(layers)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See RecurrentCore."""
        after = []
        for index, (layer, before) in enumerate(zip(self.layers, state.split(self.out_size, dim=1), strict=True)):
            update, new = _gates(layer(x))
            after.append(torch.lerp(before, new, update))
            x = after[-1] + x if index else after[-1]
        return x, torch.cat(after, dim=1)

    def sequence(self, x: Tensor, state: Tensor, is_first: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See RecurrentCore."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
            first, after = is_first.unsqueeze(-1), []
            state = torch.where(first[0], 0.0, state)  # it may hold NaN there
            for index, (layer, before) in enumerate(zip(self.layers, state.split(self.out_size, dim=1), strict=True)):
                update, new = _gates(layer(x))
                if held is not None:
                    update = update.masked_fill(held.unsqueeze(-1), 0.0)
                states: Tensor = _Scan.apply((1.0 - update).masked_fill(first, 0.0), update * new, before)
                after.append(states[-1])
                x = states + x if index else states
            return x, torch.cat(after, dim=1)


def _gates(projected: Tensor) -> tuple[Tensor, Tensor]:
    """Update gate and new state of a projection [..., 2H]."""
    update, new = projected.chunk(2, dim=-1)
    return torch.sigmoid(update), torch.where(new >= 0.0, new + 0.5, torch.sigmoid(new))


def _scan(decay: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """h[t] = decay[t] h[t-1] + x[t] with h[-1] = 0, and the products of decays up to t; all [T, ...].

    By doubling: after a pass with shift d every step has the sum over the last 2d.
    """
    shift = 1
    while shift < len(x):
        x = torch.cat((x[:shift], torch.addcmul(x[shift:], decay[shift:], x[:-shift])))
        decay = torch.cat((decay[:shift], decay[shift:] * decay[:-shift]))
        shift *= 2
    return x, decay


class _Scan(torch.autograd.Function):
    """h[t] = decay[t] h[t-1] + x[t], with h[-1] = first."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, x: Tensor, first: Tensor) -> Tensor:
        sums, products = _scan(decay, x)
        h = torch.addcmul(sums, products, first.unsqueeze(0))
        ctx.save_for_backward(decay, h, first)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, h, first = ctx.saved_tensors
        # The gradient of h runs backward in time by the same recursion, with the decay of the step after.
        later = torch.cat((decay[1:], torch.zeros_like(decay[:1])))
        of_x = _scan(later.flip(0), grads[0].flip(0))[0].flip(0)
        before = torch.cat((first.unsqueeze(0), h[:-1]))
        return of_x * before, of_x, decay[0] * of_x[0]
