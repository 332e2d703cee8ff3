"""Room: what is told of an update. In: the cells of a minibatch, as the loss saw them. Out: one number for each name.

All are of fresh steps: valid ones that were in no dataset before. What replayed steps tell is told apart. A number that
an update does not have, as the divergence of replayed steps where there are none, is NaN: means leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo import losses
from sfactory.messages import TRAIN_STATISTICS

# Of the coefficients in force, and of the gradient: who makes them knows them.
COEFFICIENTS = ("learning_rate", "value_learning_rate", "exploration_coeff", "kl_coeff")
GRADIENT = ("grad_norm",)
# What ``statistics_of`` gives, in its order.
NAMES = tuple(name for name in TRAIN_STATISTICS if name not in (*COEFFICIENTS, *GRADIENT))


class Cells(NamedTuple):
    """A minibatch, or a part of it, cell by cell; each [T, R], without gradients.

    policy_loss, value_loss, entropy: float - terms of the loss, before their coefficients.
    log_ratio: float - of the present policy and the one that acted. surrogate: float - log of the ratio that the policy
    loss clips, which is another with a target network.
    value, target, advantage: float - in the unit of rewards; the value is the one before the update.
    valid, replayed: bool - as in Batch.
    """

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    log_ratio: Tensor
    surrogate: Tensor
    value: Tensor
    target: Tensor
    advantage: Tensor
    valid: Tensor
    replayed: Tensor

    @property
    def fresh(self) -> Tensor:
        """[T, R] bool - as Batch.fresh."""
        return self.valid & ~self.replayed

    @staticmethod
    def joined(parts: Sequence[Cells]) -> Cells:
        """The parts of a minibatch as a whole."""
        return (
            parts[0] if len(parts) == 1 else Cells(*(torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True)))
        )


@torch.no_grad()
def statistics_of(cells: Cells, clip_ratio: float, auxiliary: Tensor) -> Tensor:
    """[len(NAMES)], in the order of NAMES; without waiting for the device.

    clip_ratio: e, as in ``ppo_clip_loss``. auxiliary: 0-dim - the auxiliary loss of each part, times its valid steps,
    summed up.
    """
    kl = losses.approx_kl(log_ratios=cells.log_ratio)
    numbers = torch.stack(
        (
            cells.policy_loss,
            cells.value_loss,
            cells.entropy,
            kl,
            losses.outside_clip(log_ratios=cells.surrogate, clip_ratio=clip_ratio),
            cells.surrogate.exp(),
            cells.value,
            cells.advantage,
            cells.target,
            cells.target - cells.value,
        )
    )
    fresh, again = cells.fresh, cells.valid & cells.replayed
    fresh_steps, replayed_steps = fresh.sum(), again.sum()
    # No matrix product: on a GPU it may be computed in fewer bits. With no step at all, 0 / 0 is NaN.
    means = _total(numbers, fresh) / fresh_steps
    spread = _total((numbers[-3:] - means[-3:, None, None]).square(), fresh) / fresh_steps
    advantage, target, error = spread.unbind()
    named = {
        "policy_loss": means[0],
        "value_loss": means[1],
        "entropy": means[2],
        "kl": means[3],
        "replay_kl": _total(kl, again) / replayed_steps,
        "clip_fraction": means[4],
        "ratio_mean": means[5],
        "value_mean": means[6],
        "advantage_std": advantage.sqrt(),
        "explained_variance": torch.where(target > 0.0, 1.0 - error / target, torch.nan),
        "valid_fraction": (fresh_steps + replayed_steps) / cells.valid.numel(),
        "replayed_fraction": replayed_steps / (fresh_steps + replayed_steps),
        "aux_loss": auxiliary / (fresh_steps + replayed_steps),
    }
    return torch.stack([named[name] for name in NAMES])


def _total(numbers: Tensor, where: Tensor) -> Tensor:
    """Sums of numbers [..., T, R] over the cells ``where`` [T, R]: [...]."""
    return torch.where(where, numbers, 0.0).sum((-2, -1))
