"""One gradient step: backward, clipping, and the optimizers' step, unless the gradient is not finite.

NOTE [No waiting for the device]: whether a step is taken is decided on the device. Python reads the results of all
updates once per epoch (unless the learning rate adapts to each of them), and so keeps a GPU supplied with work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sfactory.config.schema import OptimConfig
from sfactory.learner.optimizers import RefusableOptimizer
from sfactory.model.actor_critic import ActorCritic
from sfactory.ranks.ranks import Sum


class Rates(NamedTuple):
    """Learning rates of one update: ``value`` of the critic, if it has an own optimizer; ``policy`` of all else.

    Numbers, or 0-dim float32 tensors on the device.
    """

    policy: float | Tensor
    value: float | Tensor | None = None


class Applied(NamedTuple):
    """Result of an update, all 0-dim.

    norm: of the whole gradient, before clipping. taken: bool - weights were changed.
    excused: bool - the gradient may only have been too large for float16; the loss scale has been halved.
    """

    norm: Tensor
    taken: Tensor
    excused: Tensor


_LEAST, _FIRST, _MOST = 1.0, 2.0**10, 2.0**16
_GROWTH_INTERVAL = 2000


class LossScale:
    """Factor of the loss that keeps float16 gradients from vanishing below 6e-8.

    It halves, down to 1, with every gradient that is not finite, and doubles after 2,000 finite ones in a row.
    Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
    """

    def __init__(self, device: torch.device) -> None:
        self._scale = torch.tensor(_FIRST, device=device)
        self._good = torch.tensor(0, device=device)  # gradients in a row that were finite

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {"scale": self._scale, "good": self._good}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._scale.copy_(state["scale"])
        self._good.copy_(state["good"])

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to take the gradient of."""
        return loss * self._scale

    def unscale_(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide their gradients by the scale."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(self._scale)

    def after(self, finite: Tensor) -> Tensor:
        """Adapt to a gradient that was ``finite`` (0-dim bool) or not; returns whether the scale was halved."""
        halved = ~finite & (self._scale > _LEAST)
        good = torch.where(finite, self._good + 1, 0)
        grown = good >= _GROWTH_INTERVAL
        factor = torch.where(finite, torch.where(grown, 2.0, 1.0), 0.5)
        # In place, here and in ``load``: a CUDA graph knows these tensors alone.
        self._scale.copy_((self._scale * factor).clamp(_LEAST, _MOST))
        self._good.copy_(torch.where(grown, 0, good))
        return halved


class GradientStep:
    """The optimizers of a model. An update is ``begin``, ``backward`` for each part of its loss, and ``step``.

    ``optimizer``: of all weights, or of all but the critic's. ``value_optimizer``: the critic's own, if any.
    ``replaced``: how often hyperparameters or moments were replaced, which a recorded step does not see.
    """

    def __init__(self, model: ActorCritic, config: OptimConfig, beside: Iterable[nn.Parameter] = ()) -> None:
        """``beside``: weights that are trained but not acted with, as those of an auxiliary loss."""
        self._max_norm = config.max_grad_norm or torch.inf
        extra, matrices = list(beside), frozenset(model.hidden_matrices())
        self._parameters = [*model.parameters(), *extra]  # saved moments go by this order
        mine = self._parameters
        self.value_optimizer: RefusableOptimizer | None = None
        if config.separate_value_optimizer:
            mine = [*model.actor_parameters(), *extra]
            self.value_optimizer = RefusableOptimizer(model.critic_parameters(), matrices, config)
        self.optimizer = RefusableOptimizer(mine, matrices, config)
        self._optimizers = [each for each in (self.optimizer, self.value_optimizer) if each is not None]
        self._scale = LossScale(self._parameters[0].device) if model.computes_in is torch.float16 else None
        self.replaced = 0

    @property
    def trains(self) -> tuple[bool, ...]:
        """Of each weight, whether it gets gradients now."""
        return tuple(parameter.requires_grad for parameter in self._parameters)

    def moments(self) -> list[Tensor]:
        """All that a step changes beside weights, in place; before the first one the moments are not there yet."""
        scale = [] if self._scale is None else self._scale.state().values()
        return [*(moment for each in self._optimizers for moment in each.moments()), *scale]

    def forget(self) -> None:
        """Be as before the first step, but for the loss scale."""
        self.replaced += 1
        for optimizer in self._optimizers:
            optimizer.forget()

    def adopt(self, config: OptimConfig) -> None:
        """Continue under the hyperparameters of ``config``, with the same moments."""
        self.replaced += 1
        self._max_norm = config.max_grad_norm or torch.inf
        for optimizer in self._optimizers:
            optimizer.adopt(config)

    def state(self) -> dict[str, Any]:
        """For a checkpoint: "optimizer"; if the critic has its own, "value_optimizer"; in float16, "loss_scale"."""
        critic = None if self.value_optimizer is None else self.value_optimizer.state_dict()
        scale = None if self._scale is None else self._scale.state()
        state = {"optimizer": self.optimizer.state_dict(), "value_optimizer": critic, "loss_scale": scale}
        return {name: value for name, value in state.items() if value is not None}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``, but for its hyperparameters; raises ValueError if it does not fit."""
        saved, wanted = state.get("value_optimizer") is not None, self.value_optimizer is not None
        if saved != wanted:
            raise ValueError(f"it was saved with --separate_value_optimizer={saved}, which cannot become {wanted}")
        self.replaced += 1
        self.optimizer.load_state_dict(state["optimizer"])
        if self.value_optimizer is not None:
            self.value_optimizer.load_state_dict(state["value_optimizer"])
        if self._scale is not None and "loss_scale" in state:  # a run may be resumed in another precision
            self._scale.load(state["loss_scale"])

    def begin(self) -> None:
        """Clear all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def backward(self, loss_part: Tensor) -> None:
        """Add the gradient of ``loss_part`` (0-dim): a loss is the sum of its parts."""
        torch.autograd.backward(loss_part if self._scale is None else self._scale.scaled(loss_part))

    def add_up(self, steps: Tensor, is_mean: bool, over_ranks: Sum) -> Tensor:
        """Make the gradients those of the loss over all ranks; returns whether a step is wanted (0-dim bool).

        steps: 0-dim int64 - valid ones of this rank, which its loss is the mean over or (not ``is_mean``) the sum. The
        sum over ranks is one of a single tensor. It comes after all parts of a loss, and before the loss scale is taken
        out, which is the same on all ranks.
        """
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        weight = steps.to(gradients[0].dtype)
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), weight.reshape(1)])
        if is_mean:
            flat[:-1] *= weight
        flat = over_ranks(flat)
        total = flat[-1]
        if is_mean:
            flat[:-1] /= total.clamp(min=1.0)
        pieces = torch.split(flat[:-1], [gradient.numel() for gradient in gradients])
        # Copied back: a gradient keeps the order of its weight in memory, which is not always that of its indices.
        shaped = [piece.view(gradient.shape) for piece, gradient in zip(pieces, gradients, strict=True)]
        torch._foreach_copy_(gradients, shaped)
        return total > 0.0

    def step(self, rates: Rates, wanted: Tensor) -> Applied:
        """Step along the gradients if ``wanted`` (0-dim bool) and they are finite; otherwise nothing changes."""
        scale = self._scale
        if scale is not None:
            scale.unscale_(self._parameters)
        # Each optimizer's gradients are clipped by their own norm.
        norm = torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, self._max_norm)
        if self.value_optimizer is not None:
            value_norm = torch.nn.utils.clip_grad_norm_(self.value_optimizer.parameters, self._max_norm)
            norm = torch.hypot(norm, value_norm)
        finite = torch.isfinite(norm)
        taken = finite & wanted
        self.optimizer.step(rates.policy, taken)
        if self.value_optimizer is not None:
            assert rates.value is not None
            self.value_optimizer.step(rates.value, taken)
        excused = torch.zeros_like(taken) if scale is None else scale.after(finite)
        return Applied(norm, taken, excused)
