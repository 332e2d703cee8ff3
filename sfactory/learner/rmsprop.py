"""Room: RMSprop, in torch's style and in TensorFlow's. In: parameters with gradients. Out: changed parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RMSprop(torch.optim.Optimizer):
    """Divides gradients by the root of a running mean of their squares.

    s <- alpha s + (1 - alpha) g^2;  m <- momentum m + g / d;  p <- p - lr m.
    As in torch: s = 0 at the start, d = sqrt(s) + eps. As in TensorFlow: s = 1 at the start, d = sqrt(s + eps). An eps
    that was tuned for one says nothing about the other.
    Source: Tieleman and Hinton 2012, "Neural networks for machine learning", lecture 6.5.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        alpha: float,
        momentum: float,
        eps: float,
        tf_style: bool,
    ) -> None:
        """``tf_style``: TensorFlow's instead of torch's."""
        settings = {"lr": lr, "alpha": alpha, "momentum": momentum, "eps": eps, "tf_style": tf_style}
        super().__init__(parameters, settings)

    def init_group(self, group: dict[str, Any]) -> None:
        """Make the moments that the group's parameters have not got yet."""
        for parameter in group["params"]:
            moments = self.state[parameter]
            if "square_avg" not in moments:
                moments["square_avg"] = torch.full_like(parameter, 1.0 if group["tf_style"] else 0.0)
            if group["momentum"] and "momentum_buffer" not in moments:
                moments["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step along the gradients; ``closure`` is not looked at."""
        for group in self.param_groups:
            self.init_group(group)
            self._step_group(group)

    def _step_group(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        gradients = [parameter.grad for parameter in parameters]
        squares = [self.state[parameter]["square_avg"] for parameter in parameters]
        torch._foreach_mul_(squares, group["alpha"])
        torch._foreach_addcmul_(squares, gradients, gradients, value=1.0 - group["alpha"])
        if group["tf_style"]:
            divisors = torch._foreach_add(squares, group["eps"])
            torch._foreach_sqrt_(divisors)
        else:
            divisors = torch._foreach_sqrt(squares)
            torch._foreach_add_(divisors, group["eps"])
        if group["momentum"]:
            buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_addcdiv_(buffers, gradients, divisors)
            torch._foreach_add_(parameters, buffers, alpha=-group["lr"])
        else:
            torch._foreach_addcdiv_(parameters, gradients, divisors, value=-group["lr"])
