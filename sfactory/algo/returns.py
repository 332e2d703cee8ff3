"""What the targets of GAE and V-trace share: checks of shapes, temporal-difference errors, the scan over time.

Only ``backward_scan_`` loops in Python, with one fused operation per step.

Rows may be held: steps in which an agent waits for its turn. They are passed over: value, trace and correction of the
next row that is not held stand for theirs, without discount, so targets are those of the trajectory of turns alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_shapes(bootstrap_value: Tensor, **time_major: Tensor) -> None:
    """Raise ValueError unless all are [T, B] and ``bootstrap_value`` is [B]: broadcasting would hide a wrong shape."""
    shapes = {name: tuple(tensor.shape) for name, tensor in time_major.items()}
    expected = shapes["values"]
    wrong = [name for name, shape in shapes.items() if shape != expected]
    if len(expected) != 2 or expected[0] < 1 or wrong or tuple(bootstrap_value.shape) != expected[1:]:
        raise ValueError(
            f"targets need [T, B] tensors of one shape with T >= 1, and bootstrap_value [B]; got {shapes}, "
            f"bootstrap_value {tuple(bootstrap_value.shape)}: reshape to time-major before the call"
        )


def td_errors_of(
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


def backward_scan_(x: Tensor, decays: Tensor, held: Tensor | None) -> Tensor:
    """In place, from the end: x[t] += decays[t] * x[t + 1], undecayed at held rows. Returns ``x``. All are [T, B]."""
    if held is not None:
        decays = decays.masked_fill(held, 1.0)
    rows, row_decays = x.unbind(0), decays.unbind(0)
    later = rows[-1]
    for row, decay in zip(reversed(rows[:-1]), reversed(row_decays[:-1]), strict=True):
        later = row.addcmul_(decay, later)
    return x
