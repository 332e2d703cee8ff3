"""The loss of one minibatch and its statistics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch
from sfactory.learner.loss import AuxiliaryTask, LossFunction
from sfactory.learner.minibatches import Minibatch
from sfactory.learner.targets import TargetNetwork, Targets
from sfactory.learner.train_stats import NAMES, LossTerms, statistics_of
from sfactory.model.actor_critic import ActorCritic


class Loss(NamedTuple):
    """total: 0-dim, with gradients. parts: their number. statistics: by name. returns: [T, R] - value targets."""

    total: Tensor
    parts: int
    statistics: dict[str, float]
    returns: Tensor


def loss_of(
    model: ActorCritic,
    config: AlgoConfig,
    batch: Batch,
    *,
    targets: Targets | None = None,
    microbatch_size: int = 0,
    target: TargetNetwork | None = None,
    auxiliary: AuxiliaryTask | None = None,
) -> Loss:
    """The loss of ``batch`` as a minibatch, with the coefficients of ``config``. targets: its own if none are given."""
    objective = LossFunction(model, config, target, auxiliary)
    targets = objective.gae_targets(batch) if targets is None else targets
    minibatch, exploration, kl = Minibatch(batch, targets), config.exploration_loss_coeff, config.kl_loss_coeff
    parts = list(objective.parts(minibatch, microbatch_size, exploration=exploration, kl=kl))
    cells = LossTerms.joined([part.cells for part in parts])
    statistics = statistics_of(cells, config.ppo_clip_ratio, torch.stack([part.auxiliary for part in parts]).sum())
    total = torch.stack([part.loss for part in parts]).sum()
    return Loss(total, len(parts), dict(zip(NAMES, statistics.tolist(), strict=True)), cells.target)


def loss_and_gradients(loss: Loss, model: ActorCritic) -> tuple[float, list[Tensor]]:
    """The total, and its gradient for each weight that has one."""
    model.zero_grad()
    torch.autograd.backward(loss.total)
    return loss.total.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]
