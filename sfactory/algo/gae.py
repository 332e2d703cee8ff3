"""Generalized advantage estimation. Source: Schulman et al. 2016, "High-dimensional control using GAE", eq. 16."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo.scan import backward_scan_, check_shapes, values_ahead, without_garbage


class GAE(NamedTuple):
    """What ``gae`` returns; nothing in it carries a gradient.

    advantages: [T, B] float - 0 at invalid rows.
    returns: [T, B] float - advantages + values, the targets of the value function.
    """

    advantages: Tensor
    returns: Tensor


@torch.no_grad()
def gae(
    *,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    valid: Tensor,
    lambda_: float,
) -> GAE:
    """Advantages A[t] = delta[t] + d[t] lambda A[t + 1], with the trace cut at invalid rows.

    discounts: [T, B] float - factor of the value after the step: gamma, or 0 if the step terminated.
    rewards: [T, B] float - anything at invalid rows, NaN included.
    values: [T, B] float - V(obs[t]); finite at a truncation row, since the row before it bootstraps there.
    bootstrap_value: [B] float - V(obs[T]).
    valid: [T, B] bool. lambda_: 0 gives one-step errors, 1 gives n-step returns.

    Raises ValueError for wrong shapes.
    """
    check_shapes(bootstrap_value, discounts=discounts, rewards=rewards, values=values, valid=valid)
    values = without_garbage(values, valid)
    discounts = torch.where(valid, discounts, 0.0)
    td_errors = rewards + discounts * values_ahead(values, bootstrap_value) - values
    advantages = backward_scan_(torch.where(valid, td_errors, 0.0), discounts * lambda_)
    return GAE(advantages, values + advantages)
