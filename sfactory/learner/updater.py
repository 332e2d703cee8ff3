"""Room: one gradient step. In: a loss. Out: changed weights, or the same ones if the step would have harmed.

NOTE [No waiting for the device]: whether an update may be made is decided where the loss is. Python asks a GPU for
nothing between two minibatches (unless the learning rate adapts to each): it reads once per epoch what became of all,
and so keeps the device supplied with work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfactory.config.schema import OptimConfig
from sfactory.model.actor_critic import ActorCritic


class Applied(NamedTuple):
    """norm: 0-dim - of the gradient, before clipping. taken: 0-dim bool - weights were changed.

    excused: 0-dim bool - the gradient may have been too large for float16 alone, and its scale has been halved.
    """

    norm: Tensor
    taken: Tensor
    excused: Tensor


_LEAST, _FIRST, _MOST = 1.0, 2.0**10, 2.0**16
_GROWTH_INTERVAL = 2000


class LossScale:
    """What a loss is multiplied by so that float16 gradients, which vanish below 6e-8, do not.

    It halves, down to 1, with every gradient that is not finite, and doubles after 2,000 in a row that are.
    Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
    """

    def __init__(self, device: torch.device) -> None:
        self._scale = torch.tensor(_FIRST, device=device)
        self._good = torch.tensor(0, device=device)  # gradients in a row that were finite

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to take the gradient of."""
        return loss * self._scale

    def unscale_(self, gradients: list[Tensor]) -> None:
        """Gradients of the scaled loss become those of the loss."""
        for gradient in gradients:
            gradient.div_(self._scale)

    def after(self, finite: Tensor) -> Tensor:
        """Adapt to a gradient that was ``finite`` (0-dim bool), or not; 0-dim bool: it was not, and has been halved."""
        halved = ~finite & (self._scale > _LEAST)
        self._good = torch.where(finite, self._good + 1, 0)
        grown = self._good >= _GROWTH_INTERVAL
        factor = torch.where(finite, torch.where(grown, 2.0, 1.0), 0.5)
        self._scale = (self._scale * factor).clamp(_LEAST, _MOST)
        self._good = torch.where(grown, 0, self._good)
        return halved


class Updater:
    """The optimiser of a model. ``optimizer``: its torch object, to be saved."""

    def __init__(self, model: ActorCritic, config: OptimConfig) -> None:
        self._config = config
        self._parameters = list(model.parameters())
        self.optimizer = torch.optim.Adam(self._parameters, fused=True, **self._settings())
        self._scale = LossScale(self._parameters[0].device) if model.computes_in is torch.float16 else None

    def _settings(self) -> dict[str, Any]:
        config = self._config
        return {"lr": config.learning_rate, "betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_eps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue with the saved moments, under the hyperparameters of this configuration, not the saved ones."""
        self.optimizer.load_state_dict(dict(state))
        for group in self.optimizer.param_groups:
            group.update(self._settings())

    def apply(self, loss: Tensor, learning_rate: float, wanted: Tensor) -> Applied:
        """Descend from ``loss`` (0-dim, with gradients), if ``wanted`` (0-dim bool) and its gradient is finite.

        Otherwise nothing changes, moments included.
        """
        optimizer, scale = self.optimizer, self._scale
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss if scale is None else scale.scaled(loss))
        if scale is not None:
            scale.unscale_([parameter.grad for parameter in self._parameters if parameter.grad is not None])
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm or torch.inf)
        finite = torch.isfinite(norm)
        taken = finite & wanted
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        # What fused optimisers of torch look at before they change anything; it is how gradient scaling skips a step.
        optimizer.found_inf = (~taken).float()  # type: ignore[attr-defined]
        optimizer.step()
        excused = torch.zeros_like(taken) if scale is None else scale.after(finite)
        return Applied(norm, taken, excused)
