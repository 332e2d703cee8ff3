"""V-trace: targets of values and advantages, corrected for the policy that acted.

Source: Espeholt et al. 2018, "IMPALA", section 4.1; lambda is from its remark 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo.returns import backward_scan_, check_shapes, td_errors_of


class VTrace(NamedTuple):
    """Results of ``vtrace``, without gradients.

    vs: [T, B] float - value targets; an invalid row's target is its own value.
    pg_advantages: [T, B] float - advantages times the clipped importance weight, for the plain policy gradient.
    advantages: [T, B] float - the same without the weight, for the PPO surrogate, which weights by its ratio.
    Both advantages are 0 at invalid rows.
    """

    vs: Tensor
    pg_advantages: Tensor
    advantages: Tensor


@torch.no_grad()
def vtrace(
    *,
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    rho_clip: float | None,
    c_clip: float | None,
    pg_rho_clip: float | None,
    lambda_: float,
    held: Tensor | None = None,
) -> VTrace:
    """V-trace targets; with weights of 1 they are the lambda-returns of GAE, and n-step returns at lambda 1.

    log_rhos: [T, B] float - log pi(a) - log mu(a); -inf marks an invalid row, across which nothing leaks.
    discounts, rewards, values, bootstrap_value, held: as of ``gae``.
    rho_clip, c_clip, pg_rho_clip: upper bounds of the weight in the target, the trace and the policy
    gradient; None is off. rho_clip sets the fixed point of the values, c_clip only speed and variance.
    lambda_: factor of the trace coefficients.

    With rho = min(rho_clip, w), c = lambda min(c_clip, w) and delta = rho (r + d V' - V):
    vs - V = delta + d c (vs' - V'), and advantage = r + d vs' - V. Raises ValueError for wrong shapes.
    """
    check_shapes(bootstrap_value, log_rhos=log_rhos, discounts=discounts, rewards=rewards, values=values)
    # Not "> -inf": a NaN weight is a fault to be seen in the targets, not an invalid row.
    valid = log_rhos != -torch.inf
    values, discounts, td_errors = td_errors_of(discounts, rewards, values, bootstrap_value, valid, held)
    weights = log_rhos.exp()
    corrections = _clipped(weights, rho_clip) * td_errors
    backward_scan_(corrections, discounts * _clipped(weights, c_clip) * lambda_, held)

    # r + d vs' - V = (r + d V' - V) + d (vs' - V'), where vs' - V' is 0 after the last step.
    advantages = td_errors
    advantages[:-1].addcmul_(discounts[:-1], corrections[1:])
    if held is not None:
        corrections.masked_fill_(held, 0.0)
    return VTrace(values + corrections, _clipped(weights, pg_rho_clip) * advantages, advantages)


def _clipped(weights: Tensor, clip: float | None) -> Tensor:
    return weights if clip is None else weights.clamp(max=clip)
