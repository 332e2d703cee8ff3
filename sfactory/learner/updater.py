"""Room: one gradient step. In: a loss. Out: changed weights, or the same ones if the step would have harmed.

NOTE [No waiting for the device]: whether an update may be made is decided where the loss is. Python asks a GPU for
nothing between two minibatches: it reads once per dataset what became of each, and so keeps it supplied with work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfactory.config.schema import OptimConfig
from sfactory.model.actor_critic import ActorCritic

# float16 gradients vanish below 6e-8. The scale halves when they overflow; it never grows, so that no update is lost to
# finding out how far it can.
_LOSS_SCALE = 2.0**10
_NEVER = 2**31 - 1


class Applied(NamedTuple):
    """norm: 0-dim - of the gradient, before clipping. taken: 0-dim bool - weights were changed."""

    norm: Tensor
    taken: Tensor


class Updater:
    """The optimiser of a model. ``optimizer``: its torch object, to be saved."""

    def __init__(self, model: ActorCritic, config: OptimConfig) -> None:
        self._config = config
        self._parameters = list(model.parameters())
        self.optimizer = torch.optim.Adam(self._parameters, fused=True, **self._settings())
        device = self._parameters[0].device
        self._scaler = torch.amp.GradScaler(
            device.type, init_scale=_LOSS_SCALE, growth_interval=_NEVER, enabled=model.computes_in is torch.float16
        )

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
        optimizer, scaler = self.optimizer, self._scaler
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm or torch.inf)
        taken = torch.isfinite(norm) & wanted
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        # What fused optimisers of torch look at before they change anything; it is how gradient scaling skips a step.
        optimizer.found_inf = (~taken).float()  # type: ignore[attr-defined]
        optimizer.step()
        if scaler.is_enabled():
            scaler.update()
        return Applied(norm, taken)
