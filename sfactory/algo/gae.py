"""Generalized advantage estimation (GAE).

Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", eq. 16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo.returns import backward_scan_, check_shapes, td_errors_of


class GAE(NamedTuple):
    """Results of ``gae``, without gradients.

    advantages: [T, B] float - 0 at invalid rows. returns: [T, B] float - targets of the value function.
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
    held: Tensor | None = None,
) -> GAE:
    """Advantages A[t] = delta[t] + d[t] lambda A[t + 1], with the trace cut at invalid rows.

    discounts: [T, B] float - factor of the value after the step: gamma, or 0 if the step terminated.
    rewards: [T, B] float - anything at invalid rows, NaN included.
    values: [T, B] float - V(obs[t]); finite at a truncation row, since the row before it bootstraps there.
    bootstrap_value: [B] float - V(obs[T]).
    valid: [T, B] bool. lambda_: 0 gives one-step errors, 1 gives n-step returns.
    held: [T, B] bool - rows that are passed over, all of them invalid; None: none.
    Raises ValueError for wrong shapes.
    """
    check_shapes(bootstrap_value, discounts=discounts, rewards=rewards, values=values, valid=valid)
    values, discounts, td_errors = td_errors_of(discounts, rewards, values, bootstrap_value, valid, held)
    advantages = backward_scan_(td_errors, discounts * lambda_, held)
    if held is not None:
        advantages.masked_fill_(held, 0.0)
    return GAE(advantages, values + advantages)
