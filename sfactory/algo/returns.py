"""Targets of values and advantages: generalized advantage estimation (GAE) and V-trace.

Sources: Schulman et al. 2016, "High-dimensional control using GAE", eq. 16; Espeholt et al. 2018, "IMPALA", section 4.1
(lambda: its remark 2). Only ``_backward_scan_`` loops in Python, with one fused operation per step.

Rows may be held: steps in which an agent waits for its turn. They are passed over: value, trace and correction of the
next row that is not held stand for theirs, without discount, so targets are those of the trajectory of turns alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def columns_of(tensor: Tensor, which: slice | Tensor) -> Tensor:
    """Columns of ``tensor`` [T, B, ...]: a slice as a view, [M] int64 as a copy."""
    # Of images, index_select on a CPU takes a sixth of the time of tensor[:, which].
    return tensor[:, which] if isinstance(which, slice) else tensor.index_select(1, which)


class Targets(NamedTuple):
    """returns: [T, B] float - targets of the value function. advantages: [T, B] float - 0 at invalid rows."""

    returns: Tensor
    advantages: Tensor

    def columns(self, which: slice | Tensor) -> Targets:
        """The rows ``which``, as Batch.columns."""
        return Targets(columns_of(self.returns, which), columns_of(self.advantages, which))

    def steps(self) -> Targets:
        """All steps as rows of one step each, as Batch.steps."""
        return Targets(self.returns.reshape(1, -1), self.advantages.reshape(1, -1))


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
def gae(
    *,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    valid: Tensor,
    lambda_: float,
    held: Tensor | None = None,
) -> Targets:
    """Advantages A[t] = delta[t] + d[t] lambda A[t + 1], with the trace cut at invalid rows.

    discounts: [T, B] float - factor of the value after the step: gamma, or 0 if the step terminated.
    rewards: [T, B] float - anything at invalid rows, NaN included.
    values: [T, B] float - V(obs[t]); finite at a truncation row, since the row before it bootstraps there.
    bootstrap_value: [B] float - V(obs[T]).
    valid: [T, B] bool. lambda_: 0 gives one-step errors, 1 gives n-step returns.
    held: [T, B] bool - rows that are passed over, all of them invalid; None: none.
    Raises ValueError for wrong shapes.
    """
    _check_shapes(bootstrap_value, discounts=discounts, rewards=rewards, values=values, valid=valid)
    values, discounts, td_errors = _td_errors(discounts, rewards, values, bootstrap_value, valid, held)
    advantages = _backward_scan_(td_errors, discounts * lambda_, held)
    if held is not None:
        advantages.masked_fill_(held, 0.0)
    return Targets(values + advantages, advantages)


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
    _check_shapes(bootstrap_value, log_rhos=log_rhos, discounts=discounts, rewards=rewards, values=values)
    # Not "> -inf": a NaN weight is a fault to be seen in the targets, not an invalid row.
    valid = log_rhos != -torch.inf
    values, discounts, td_errors = _td_errors(discounts, rewards, values, bootstrap_value, valid, held)
    weights = log_rhos.exp()
    corrections = _clipped(weights, rho_clip) * td_errors
    _backward_scan_(corrections, discounts * _clipped(weights, c_clip) * lambda_, held)

    # r + d vs' - V = (r + d V' - V) + d (vs' - V'), where vs' - V' is 0 after the last step.
    advantages = td_errors
    advantages[:-1].addcmul_(discounts[:-1], corrections[1:])
    if held is not None:
        corrections.masked_fill_(held, 0.0)
    return VTrace(values + corrections, _clipped(weights, pg_rho_clip) * advantages, advantages)


def _check_shapes(bootstrap_value: Tensor, **time_major: Tensor) -> None:
    """Raise ValueError unless all are [T, B] and ``bootstrap_value`` is [B]: broadcasting would hide a wrong shape."""
    shapes = {name: tuple(tensor.shape) for name, tensor in time_major.items()}
    expected = shapes["values"]
    wrong = [name for name, shape in shapes.items() if shape != expected]
    if len(expected) != 2 or expected[0] < 1 or wrong or tuple(bootstrap_value.shape) != expected[1:]:
        raise ValueError(
            f"targets need [T, B] tensors of one shape with T >= 1, and bootstrap_value [B]; got {shapes}, "
            f"bootstrap_value {tuple(bootstrap_value.shape)}: reshape to time-major before the call"
        )


def _td_errors(
    discounts: Tensor, rewards: Tensor, values: Tensor, bootstrap_value: Tensor, valid: Tensor, held: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Values without garbage, discounts and r + d V' - V, the latter two with 0 at invalid rows; each [T, B].

    NaN and inf among the values of invalid rows become 0. Finite ones are kept: a truncation row's value is what the
    row before it bootstraps from (NOTE [Row life]). Those of valid rows stay visible. Held rows have the next value.
    """
    if held is not None:
        values = _next_values(values, bootstrap_value, held)
    values = torch.where(valid, values, torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0))
    discounts = torch.where(valid, discounts, 0.0)
    values_ahead = torch.cat((values[1:], bootstrap_value.unsqueeze(0)))
    return values, discounts, torch.where(valid, rewards + discounts * values_ahead - values, 0.0)


def _next_values(values: Tensor, bootstrap_value: Tensor, held: Tensor) -> Tensor:
    """Values [T, B] in which each held row has the value of the next row that is not held."""
    rows = torch.arange(len(values), device=values.device).unsqueeze(1)
    later = torch.where(held, len(values), rows).flip(0).cummin(0).values.flip(0)
    return torch.cat((values, bootstrap_value.unsqueeze(0))).gather(0, later)


def _backward_scan_(x: Tensor, decays: Tensor, held: Tensor | None) -> Tensor:
    """In place, from the end: x[t] += decays[t] * x[t + 1], undecayed at held rows. Returns ``x``. All are [T, B]."""
    if held is not None:
        decays = decays.masked_fill(held, 1.0)
    rows, row_decays = x.unbind(0), decays.unbind(0)
    later = rows[-1]
    for row, decay in zip(reversed(rows[:-1]), reversed(row_decays[:-1]), strict=True):
        later = row.addcmul_(decay, later)
    return x


def _clipped(weights: Tensor, clip: float | None) -> Tensor:
    return weights if clip is None else weights.clamp(max=clip)
