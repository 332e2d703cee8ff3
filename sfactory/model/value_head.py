"""Room: the value function's last layer. In: features. Out: values in units of its own, or in those of rewards."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.encoders import initialize
from sfactory.model.normalizer import RunningNormalizer

_GAIN = 1.0


class ValueHead(nn.Module):
    """One linear layer that predicts returns, normalized if there are running statistics of them.

    With statistics, what the layer gives is a normalized value, and losses compare it with normalized targets;
    ``denormalize`` brings it to the unit of rewards, in which everything else is (see RunningNormalizer).
    """

    def __init__(self, in_size: int, config: ModelConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(in_size, 1)
        initialize(self.linear, config.policy_initialization, _GAIN)
        self.returns = RunningNormalizer((), clip=None) if config.normalize_returns else None

    def forward(self, features: Tensor) -> Tensor:
        """Values [B] of features [B, H], normalized."""
        return F.linear(features, self.linear.weight, self.linear.bias).squeeze(-1)

    def denormalize(self, values: Tensor) -> Tensor:
        """Values as ``forward`` gives them, in the unit of rewards; of any shape."""
        return values if self.returns is None else self.returns.denormalize(values)

    def normalize(self, values: Tensor) -> Tensor:
        """Values in the unit of rewards as ``forward`` should give them; of any shape."""
        return values if self.returns is None else self.returns.forward(values)

    @torch.no_grad()
    def observe(self, returns: Tensor, valid: Tensor) -> None:
        """Take returns [T, B] into the statistics where ``valid``; denormalized values stay what they are.

        Source: van Hasselt et al. 2016, "Learning values across many orders of magnitude" (Pop-Art), eq. 9.
        """
        if self.returns is None:
            return
        # Before: v = (y - shift) / scale of the layer's output y. After: the same v wants y' = v scale' + shift'.
        scale, shift = self.returns.scale.clone(), self.returns.shift.clone()
        self.returns.update(returns, valid)
        factor = self.returns.scale / scale
        self.linear.weight.mul_(factor)
        self.linear.bias.sub_(shift).mul_(factor).add_(self.returns.shift)
